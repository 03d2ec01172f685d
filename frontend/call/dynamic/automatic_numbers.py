"""Python numbers among a call's arguments that become inputs, after a second value was seen.

At first a float or an int is a part of a call's key, and a constant of its program. If a later call differs in it,
programs from then on have it as an argument: the trace works on a traced number, and Python code that reads its value
adds a guard. If a program needs the exact value (as a size, or as a probability), a program is compiled for each
value, as before.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gflow.runtime.calls import is_input
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.guards import leaves
from gflow.tracing.data.trace import Trace

_log = logging.getLogger("gflow")

#: Python's numbers that may become inputs; bools are choices
NUMBERS = frozenset({float, int})


@dataclass
class AutomaticNumbers:
    """The numbers of a graph's calls that have changed, by kind of call.

    Attributes: values: those of the latest call, by leaf; programs read them. seen: the numbers of the first call.
    live: leaves that are inputs. refused: leaves that must stay constants.
    """

    values: dict[Any, dict[int, float]] = field(default_factory=dict)
    seen: dict[Any, dict[int, float]] = field(default_factory=dict)
    live: dict[Any, set[int]] = field(default_factory=dict)
    refused: dict[Any, set[int]] = field(default_factory=dict)

    def mark(self, call: BoundCall, more: bool) -> None:
        """Convert the numbers of a call that differ from those of an earlier one to inputs, and remove them from its
        key. more: whether another program for this is allowed."""
        if NUMBERS.isdisjoint(map(type, call.leaves)):
            return
        kind = _kind(call)
        given = {i: x for i, x in enumerate(call.leaves) if type(x) in NUMBERS}
        before = self.seen.setdefault(kind, given)
        refused = self.refused.get(kind, set())
        live = self.live.setdefault(kind, set())
        if more:
            live |= {i for i, x in given.items() if x != before[i] and i not in refused}
        if not live or not all(is_input(given[i]) for i in live):
            return
        values = self.values.setdefault(kind, {})
        values.update((i, given[i]) for i in live)
        call.numbers, call.values, call.plain_key = tuple(sorted(live)), values, call.key
        call.key = _without(call.key, given, live)

    def key_of(self, call: BoundCall) -> tuple[Any, ...]:
        """The key of such a call, without its inputs."""
        given = {i: x for i, x in enumerate(call.leaves) if type(x) in NUMBERS}
        return _without(call.plain_key, given, self.live[_kind(call)])

    def refuse(self, call: BoundCall, name: str, which: Sequence[int], reason: str) -> None:
        """Make these numbers of such calls constants of programs; warn once. which: leaves."""
        kind = _kind(call)
        self.refused.setdefault(kind, set()).update(which)
        self.live[kind] -= set(which)
        names = ", ".join(call.names[i] for i in which)
        _log.warning("%s is compiled for each value of %s: %s", name, names, reason)


def as_plain(call: BoundCall) -> BoundCall:
    """The call with its numbers as constants."""
    return BoundCall(call.build, call.args, call.kwargs, call.leaves, call.plain_key, call.dynamic)


#: questions about a number that have one answer for many values
_CHOICES = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, bool, math.isfinite,
)  # fmt: skip


def needed(trace: Trace) -> list[int]:
    """The numbers of a call on whose exact values the trace depends, for example by `float(x)` or `int(10 * x)`."""
    sources = [
        trace.numbers[i]
        for guard in trace.guards
        if isinstance(guard.expr, tuple) and guard.expr[0] not in _CHOICES
        for i in leaves(guard.expr)
    ]
    return sorted({s.key for s in sources if s.place.kind == "call"})


def _kind(call: BoundCall) -> Any:
    """The kinds of the leaves: calls of one kind may differ in sizes and numbers."""
    return tuple(
        (x.dtype, x.dim())
        if isinstance(x, torch.Tensor)
        else type(x)
        if type(x) in NUMBERS
        else (type(x), x)
        for x in call.leaves
    ), tuple(call.kwargs)


def _without(key: Sequence[Any], given: dict[int, float], live: set[int]) -> tuple[Any, ...]:
    """A key without the values of some numbers."""
    parts = list(key)
    at = 0
    for i, value in given.items():
        kind = type(value)
        at = parts.index((kind, repr(value) if kind is float else value), at)
        if i in live:
            parts[at] = (kind, None)
        at += 1
    return tuple(parts)

"""Python floats among a call's arguments that become inputs, once a second value of them has come.

A float is a part of a call's key at first, and a constant of its program. Where a later call differs in it, programs
from then on take it as an argument: the trace works on a traced number, and what Python asks of that is a guard. A
program that needs the very value (it makes a shape or a probability of it) is made for each, as before.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.guards import leaves
from gflow.tracing.data.trace import Trace

_log = logging.getLogger("gflow")


@dataclass
class AutomaticNumbers:
    """What floats of a graph's calls have changed so far, by kind of call.

    values: those of the latest call, by leaf, which programs read. seen: the floats of the first; live: leaves that
    are inputs; refused: leaves that are not, whatever they do.
    """

    values: dict[Any, dict[int, float]] = field(default_factory=dict)
    seen: dict[Any, dict[int, float]] = field(default_factory=dict)
    live: dict[Any, set[int]] = field(default_factory=dict)
    refused: dict[Any, set[int]] = field(default_factory=dict)

    def mark(self, call: BoundCall, more: bool) -> None:
        """Make inputs of the floats of a call that differ from those of an earlier one, and leave them out of its
        key. more: whether there may be another program for that."""
        if float not in map(type, call.leaves):
            return
        kind = _kind(call)
        given = {i: x for i, x in enumerate(call.leaves) if type(x) is float}
        before = self.seen.setdefault(kind, given)
        refused = self.refused.get(kind, set())
        live = self.live.setdefault(kind, set())
        if more:
            live |= {i for i, x in given.items() if x != before[i] and i not in refused}
        # at 0 Python and PyTorch have rules of their own, and nan equals nothing
        if not live or not all(math.isfinite(given[i]) and given[i] for i in live):
            return
        values = self.values.setdefault(kind, {})
        values.update((i, given[i]) for i in live)
        call.numbers, call.values, call.plain_key = tuple(sorted(live)), values, call.key
        call.key = _without(call, given, live)

    def refuse(self, call: BoundCall, name: str, which: Sequence[int], reason: str) -> None:
        """These floats of such calls are constants of programs; say so once. which: leaves."""
        kind = _kind(call)
        self.refused.setdefault(kind, set()).update(which)
        self.live[kind] -= set(which)
        names = ", ".join(call.names[i] for i in which)
        _log.warning("%s is compiled for each value of %s: %s", name, names, reason)


def as_plain(call: BoundCall) -> BoundCall:
    """The call with its floats as constants."""
    return BoundCall(call.build, call.args, call.kwargs, call.leaves, call.plain_key, call.dynamic)


#: what is asked of a float that has one answer for many values
_CHOICES = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, bool)


def needed(trace: Trace) -> list[int]:
    """The floats of a call whose values the trace goes by, as by `float(x)` or `int(10 * x)`."""
    sources = [
        trace.numbers[i]
        for guard in trace.guards
        if isinstance(guard.expr, tuple) and guard.expr[0] not in _CHOICES
        for i in leaves(guard.expr)
    ]
    return sorted({s.key for s in sources if s.place.kind == "call"})


def _kind(call: BoundCall) -> Any:
    """Of what kind the leaves are: calls of one kind may differ in sizes and floats."""
    return tuple(
        (x.dtype, x.dim()) if isinstance(x, torch.Tensor) else float if type(x) is float else x
        for x in call.leaves
    ), tuple(call.kwargs)


def _without(call: BoundCall, given: dict[int, float], live: set[int]) -> tuple[Any, ...]:
    """The key of a call without the values of some floats."""
    parts = list(call.key)
    at = 0
    for i, value in given.items():
        at = parts.index((float, repr(value)), at)
        if i in live:
            parts[at] = (float, None)
        at += 1
    return tuple(parts)

"""Where in an optimizer Python keeps what a traced step reads: its dicts, and the values in them.

A step's Python values are inputs (`NumberSource`, `StateSlot`), conditions under which the trace holds
(`BakedValue`, `Structure`), or results that are written back (`NumberSource.final`, `PlainWrite`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gflow.dialects.records import record

from .values import TraceValue


class StepReads(Protocol):
    """What a step reads besides its optimizer; see `tracing/reads`."""

    found: list[Any]
    names: set[str]


class _Missing:
    """A key that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


@dataclass(eq=False)
class Place:
    """A dict that belongs to an optimizer, by `kind`: a parameter group ("group", `which` is its number),
    the state of a parameter or another key ("entry"), the whole state, the defaults, its own attributes
    ("self"), those of an object that it holds ("object"), those of its class ("class"); or the dict with the floats of
    a graph's present call ("call").
    `load_state_dict` puts new dicts there; `locate` finds them."""

    optimizer: Any
    kind: str
    which: Any = None
    holder: Mapping[Any, Any] = field(default_factory=dict)

    def locate(self) -> bool:
        """Look the holder up in the optimizer as it is now; False where it is gone."""
        optimizer = self.optimizer
        if self.kind == "group":
            if self.which >= len(optimizer.param_groups):
                return False
            self.holder = optimizer.param_groups[self.which]
        elif self.kind == "entry":
            if self.which not in optimizer.state:
                return False
            self.holder = optimizer.state[self.which]
        elif self.kind == "state":
            self.holder = optimizer.state
        elif self.kind == "defaults":
            self.holder = optimizer.defaults
        elif self.kind == "self":
            self.holder = vars(optimizer)
        elif self.kind == "call":
            pass  # the graph keeps it
        else:
            self.holder = vars(self.which)
        return True


def item(holder: Any, key: Any, path: tuple[Any, ...]) -> Any:
    """What stands at a key, or `path` further inside; `MISSING` where there is nothing."""
    try:
        # a defaultdict would make what is asked for
        value = dict.get(holder, key, MISSING) if isinstance(holder, dict) else holder[key]
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return MISSING
    return value


def put(holder: Any, key: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set what stands there: in place, but for tuples, which are made anew. `MISSING`: take it out."""
    if path:
        outer = holder[key]
        if isinstance(outer, tuple):
            items = list(outer)
            put(items, path[0], path[1:], value)
            holder[key] = type(outer)(*items) if hasattr(outer, "_fields") else type(outer)(items)
        else:
            put(outer, path[0], path[1:], value)
    elif value is MISSING:
        holder.pop(key, None)
    else:
        holder[key] = value


@record
class StateSlot:
    """Where the tensor behind the input `value` lives in an optimizer."""

    place: Place
    key: Any
    path: tuple[Any, ...]
    value: TraceValue

    def read(self) -> Any:
        """The value that lies at the place now; `MISSING` where there is none."""
        return item(self.place.holder, self.key, self.path)


@dataclass
class NumberSource:
    """Where the number behind the scalar input `value` lives on the host: `place[key]`, or an item `path`
    of what is there. `tensor` is the argument that carries it, `last` its value there, `final` what the
    step assigns to it. `others`: more places, which hold the same number and get the same one (the step
    counters of all parameters are one number). `born`: the step makes it, nothing is there before."""

    place: Place
    key: Any
    path: tuple[Any, ...]
    value: TraceValue
    tensor: torch.Tensor
    last: float
    name: str
    final: TraceValue | None = None
    others: list[Place] = field(default_factory=list)
    born: bool = False

    def read(self) -> Any:
        """The number that lies at the place now; `MISSING` where there is none."""
        return item(self.place.holder, self.key, self.path)


@record
class BakedValue:
    """A hyperparameter that is no number: the trace holds while it stays equal. `MISSING`: while there
    is none."""

    place: Place
    key: Any
    value: Any
    path: tuple[Any, ...] = ()

    def holds(self) -> bool:
        """Whether the place still holds the value that the trace read."""
        current = item(self.place.holder, self.key, self.path)
        return current is self.value or bool(current == self.value)


@record
class Structure:
    """A container whose size, or all of whose keys, the step has looked at. The dict of `place` itself,
    or what stands at a key of it. `keys`: those of a dict; None for a list, which has a length only."""

    place: Place
    at: tuple[Any, ...]
    length: int
    keys: tuple[Any, ...] | None

    def holds(self) -> bool:
        """Whether the container has the length and the keys that the trace saw."""
        holder: Any = self.place.holder
        if self.at:
            holder = item(holder, self.at[0], self.at[1:])
            if holder is MISSING:
                return False
        if len(holder) != self.length:
            return False
        return self.keys is None or all(key in holder for key in self.keys)


@record
class PlainWrite:
    """A value that is no number (a flag, a string, None), which the step leaves at a place."""

    place: Place
    key: Any
    path: tuple[Any, ...]
    value: Any

    def apply(self) -> None:
        """Write the value to its place; containers are copied."""
        value = self.value
        if isinstance(value, (list, dict)):
            value = copy.deepcopy(value)  # the author's own from here on
        put(self.place.holder, self.key, self.path, value)


@dataclass
class OptimizerTrace:
    """What tracing one optimizer leaves for the caller. `reads`: what its step depends on elsewhere."""

    baked: list[BakedValue] = field(default_factory=list)
    structures: list[Structure] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    slots: list[StateSlot] = field(default_factory=list)
    writes: list[PlainWrite] = field(default_factory=list)
    replaced: dict[int, torch.Tensor] = field(default_factory=dict)
    reads: StepReads | None = None

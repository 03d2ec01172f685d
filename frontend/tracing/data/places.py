"""Where an optimizer keeps the Python values that a traced step reads: its dicts, and values inside of them.

A step's Python values are inputs (`NumberSource`, `StateSlot`), conditions under which the trace is valid
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
    """What a step reads outside of its optimizer; see `tracing/reads`."""

    found: list[Any]
    names: set[str]
    tensors: list[torch.Tensor]


class _Missing:
    """The value of a key that does not exist."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


@dataclass(eq=False)
class Place:
    """A dict that belongs to an optimizer, or to a call.

    `load_state_dict` replaces these dicts; `locate` finds the current ones.

    Args:
        kind: "group" (parameter group number `which`), "entry" (the state of the parameter or key `which`), "state"
            (the whole state), "defaults", "self" (the optimizer's attributes), "object" and "class" (attributes of
            `which`), or "call" (the floats of a graph's current call).
        holder: the dict.
    """

    optimizer: Any
    kind: str
    which: Any = None
    holder: Mapping[Any, Any] = field(default_factory=dict)

    def locate(self) -> bool:
        """Find the current dict in the optimizer; False if it no longer exists."""
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
            pass  # the graph updates this dict
        else:
            self.holder = vars(self.which)
        return True


def item(holder: Any, key: Any, path: tuple[Any, ...]) -> Any:
    """The value at a key, or at `path` inside of it; `MISSING` if there is none."""
    try:
        # subscripting a defaultdict would create the entry
        value = dict.get(holder, key, MISSING) if isinstance(holder, dict) else holder[key]
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return MISSING
    return value


def put(holder: Any, key: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set the value at a key, or at `path` inside of it, in place; tuples are replaced. `MISSING` removes the key."""
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
    """The location in an optimizer of the tensor that is the input `value`."""

    place: Place
    key: Any
    path: tuple[Any, ...]
    value: TraceValue

    def read(self) -> Any:
        """The current value at this location; `MISSING` if there is none."""
        return item(self.place.holder, self.key, self.path)


@dataclass
class NumberSource:
    """The location of the Python number that is the scalar input `value`: `place[key]`, or an item `path` of it.

    Args:
        tensor: the argument that passes the number to the program.
        last: the value of `tensor`.
        final: the value that the step assigns to the number.
        others: more places with the same number, which get the same new value (the step counters of all parameters are
            one number).
        born: whether the step creates the number.
    """

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
        """The current number at this location; `MISSING` if there is none."""
        return item(self.place.holder, self.key, self.path)


@record
class BakedValue:
    """A hyperparameter that is no number. The trace is valid while it is equal; with `MISSING`, while it does not
    exist."""

    place: Place
    key: Any
    value: Any
    path: tuple[Any, ...] = ()

    def holds(self) -> bool:
        """Whether the place still has the value from the trace."""
        current = item(self.place.holder, self.key, self.path)
        return current is self.value or bool(current == self.value)


@record
class Structure:
    """A container whose length, or all of whose keys, the step has read: the dict of `place`, or a value in it.

    Args:
        at: the path of the value; empty for the dict.
        keys: the keys of a dict; None for a list, of which only the length counts.
    """

    place: Place
    at: tuple[Any, ...]
    length: int
    keys: tuple[Any, ...] | None

    def holds(self) -> bool:
        """Whether the container has the length and the keys from the trace."""
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
    """A value that is no number (a flag, a string, None) and that the step assigns."""

    place: Place
    key: Any
    path: tuple[Any, ...]
    value: Any

    def apply(self) -> None:
        """Write the value to its place; containers are copied."""
        value = self.value
        if isinstance(value, (list, dict)):
            value = copy.deepcopy(value)  # the author's code may change it
        put(self.place.holder, self.key, self.path, value)


@dataclass
class OptimizerTrace:
    """The Python side of a traced optimizer step. `reads`: what the step depends on outside of its optimizer."""

    baked: list[BakedValue] = field(default_factory=list)
    structures: list[Structure] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    slots: list[StateSlot] = field(default_factory=list)
    writes: list[PlainWrite] = field(default_factory=list)
    replaced: dict[int, torch.Tensor] = field(default_factory=dict)
    reads: StepReads | None = None

"""Python values of optimizers on which a plan depends, and their checks before each call.

The checks are bound to the current dicts (`bind`), so that a call compares them with a few loops in C, one over all
parameters for each key: identities of dicts, numbers, guards, values, tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import is_, itemgetter
from typing import Any

import torch

from gflow.tracing.data.guards import Guard, compiled, leaves
from gflow.tracing.data.places import (
    MISSING,
    BakedValue,
    NumberSource,
    Place,
    PlainWrite,
    StateSlot,
    Structure,
    item,
    put,
)
from gflow.tracing.data.trace import Trace
from gflow.tracing.optimizers.rates import LR_SCALE, check_changed, rate_scheduler
from gflow.tracing.optimizers.unread_keys import is_note

#: types of values whose == is exact
_COMPARED = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)


def _same(a: Iterable[Any], b: Iterable[Any]) -> bool:
    return all(map(is_, a, b))


class _Owner:
    """The current dicts of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.groups, self.state = optimizer.param_groups, optimizer.state
        self.dicts = list(self.groups)
        self.sizes = [*map(len, self.dicts)]
        self.lists = [(group, list(group["params"])) for group in self.dicts]
        self.parameters = [[*map(id, params)] for _, params in self.lists]
        self.keys, self.entries = list(self.state), list(self.state.values())

    def current(self) -> bool:
        """Whether the optimizer still has these dicts."""
        optimizer, groups, state = self.optimizer, self.groups, self.state
        if optimizer.param_groups is not groups or optimizer.state is not state:
            return False
        if len(groups) != len(self.dicts) or not _same(groups, self.dicts):
            return False
        if [*map(len, groups)] != self.sizes:
            return False
        for group, params in self.lists:
            now = group["params"]
            if len(now) != len(params) or not _same(now, params):
                return False
        return (
            len(state) == len(self.keys)
            and _same(state, self.keys)
            and _same(state.values(), self.entries)
        )


class _Rows:
    """Values at the same keys of several dicts, read by one loop."""

    def __init__(self, keys: tuple[Any, ...]) -> None:
        self.read: Callable[[Any], Any] = itemgetter(*keys, keys[0])  # a tuple, also for one key
        self.holders: list[Any] = []
        self.expected: list[tuple[Any, ...]] = []

    def equal(self) -> bool:
        return list(map(self.read, self.holders)) == self.expected


class _Column:
    """Objects at one key of several dicts. One loop for each key takes half the time of one over tuples of all
    keys."""

    def __init__(self, key: Any) -> None:
        self.read: Callable[[Any], Any] = itemgetter(key)
        self.holders: list[Any] = []
        self.expected: list[Any] = []

    def identical(self) -> bool:
        return _same(map(self.read, self.holders), self.expected)


class _Number:
    """A number that a plan reads: its source, and its current location."""

    def __init__(self, source: NumberSource) -> None:
        self.source = source
        self.holders: list[Any] = [p.holder for p in (source.place, *source.others)]
        self.read = itemgetter(source.key)
        place = source.place
        self.rate = source.key == "lr" and place.kind == "group" and LR_SCALE in place.holder

    def value(self) -> Any:
        """The number; `MISSING` if it is no longer a single number."""
        source = self.source
        if source.path:
            values = [item(h, source.key, source.path) for h in self.holders]
        elif len(self.holders) == 1:
            return self.holders[0].get(source.key, MISSING)
        else:
            try:
                values = list(map(self.read, self.holders))
            except KeyError:
                return MISSING
        value = values[0]
        return value if values.count(value) == len(values) else MISSING

    def write(self, value: float) -> None:
        source = self.source
        if source.path:
            for holder in self.holders:
                put(holder, source.key, source.path, value)
        else:
            key = source.key
            for holder in self.holders:
                holder[key] = value
        source.last = value


def _keys(optimizer: torch.optim.Optimizer) -> list[set[Any]]:
    """The keys of each group, except notes, which change no step."""
    return [{k for k in group if not is_note(k)} for group in optimizer.param_groups]


def _fits(value: Any, last: Any) -> bool:
    """Whether a number has the type for which the trace was made."""
    if isinstance(last, float):
        return isinstance(value, float)
    return type(value) is int


class PythonState:
    """The conditions of one trace on Python values, and the values that each call writes back.

    idle: whether there are no conditions: the graph has no optimizer, and its program no number as an argument.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        steps = trace.steps
        self.idle = not (steps or trace.guards or trace.numbers)
        self.baked: list[BakedValue] = _unique([b for step in steps for b in step.baked])
        self.structures: list[Structure] = _unique([s for step in steps for s in step.structures])
        inputs = {i.value for i in trace.inputs}
        self.slots: list[StateSlot] = [s for step in steps for s in step.slots if s.value in inputs]
        self.writes: list[PlainWrite] = [w for step in steps for w in step.writes]
        guarded = {i for g in trace.guards for i in leaves(g.expr)}
        self.sources = [
            n
            for i, n in enumerate(trace.numbers)
            if not n.born and (n.value in inputs or i in guarded)
        ]
        self.written = [n for n in trace.numbers if n.final is not None]
        own = {id(n) for n in self.written}
        self.always: list[Guard] = []
        self.others: list[Guard] = []
        for guard in trace.guards:
            moves = any(id(trace.numbers[i]) in own for i in leaves(guard.expr))
            (self.always if moves else self.others).append(guard)
        self._always, self._all = compiled(self.always), compiled([*self.always, *self.others])
        self._checked_rates, self._held = False, False
        self.bind()
        rated = {id(o): o for o in (n.source.place.optimizer for n in self.numbers if n.rate)}
        #: by optimizer, the scheduler that sets rates including their factors, by which the program then does not
        #: multiply
        self._schedulers = {i: weakref.ref(s) for i, o in rated.items() if (s := rate_scheduler(o))}
        self.parameters = [owner.parameters for owner in self.owners]
        self.keys = [_keys(owner.optimizer) for owner in self.owners]

    # binding of dicts

    def locate(self) -> bool:
        """Find the current dicts, which `load_state_dict` or the author may have replaced."""
        return all(place.locate() for step in self.trace.steps for place in step.places)

    def bind(self) -> None:
        """Bind to the current dicts."""
        owners = [
            p.optimizer
            for step in self.trace.steps
            for p in step.places
            if isinstance(p.optimizer, torch.optim.Optimizer)
        ]
        self.owners = [_Owner(o) for o in {id(o): o for o in owners}.values()]
        self.numbers = [_Number(n) for n in self.sources]
        self.finals = [(n, _Number(n)) for n in self.written]
        values: dict[Place, list[BakedValue]] = {}
        self.slow: list[BakedValue | Structure] = []
        self.missing: list[BakedValue] = []
        absent: dict[Place, list[Any]] = {}
        for b in self.baked:
            if b.value is MISSING and not b.path:
                if b.place.kind == "state":
                    self.missing.append(b)
                else:
                    absent.setdefault(b.place, []).append(b.key)
            elif b.path or not (isinstance(b.value, _COMPARED) or callable(b.value)):
                self.slow.append(b)
            else:
                values.setdefault(b.place, []).append(b)
        rows: dict[tuple[Any, ...], _Rows] = {}
        for place, found in values.items():
            keys = tuple(b.key for b in found)
            row = rows.setdefault(keys, _Rows(keys))
            row.holders.append(place.holder)
            row.expected.append((*(b.value for b in found), found[0].value))
        found_rows = list(rows.values())
        self.values = [r for r in found_rows if len(r.holders) > 1]
        self.single = [
            (r.read, r.holders[0], r.expected[0]) for r in found_rows if len(r.holders) == 1
        ]
        self.absent = [(place.holder, frozenset(keys)) for place, keys in absent.items()]
        own = [s for s in self.structures if not s.at]
        self.slow += [s for s in self.structures if s.at or s.keys is None]
        self.sized: list[Any] = [s.place.holder for s in own]
        self.sizes = [s.length for s in own]
        self.keyed = [s for s in own if s.keys]
        columns: dict[Any, _Column] = {}
        self.deep: list[tuple[StateSlot, Any]] = []
        for slot in self.slots:
            if slot.path:
                self.deep.append((slot, slot.read()))
            else:
                column = columns.setdefault(slot.key, _Column(slot.key))
                column.holders.append(slot.place.holder)
                column.expected.append(slot.read())
        self.tensors = list(columns.values())

    # checks

    def bound(self) -> bool:
        """Whether the optimizers still have the bound dicts."""
        for owner in self.owners:  # noqa: SIM110 (a generator costs more than its loop)
            if not owner.current():
                return False
        return True

    def fits(self) -> bool:
        """Whether the contents of the dicts have the structure for which the trace was made, apart from numbers and
        tensors. It must be checked after dicts were replaced."""
        for b in self.missing:
            found = item(b.place.holder, b.key, ())
            if found is not MISSING and (not isinstance(found, dict) or found):
                return False
        if [_Owner(o.optimizer).parameters for o in self.owners] != self.parameters:
            return False
        if [_keys(o.optimizer) for o in self.owners] != self.keys:
            return False
        return all(s.holds() for s in self.keyed)

    def take_numbers(self) -> bool:
        """Copy changed numbers into their arguments. False: the trace is not valid for them."""
        changed, self._held = not self._held, False
        for number in self.numbers:
            source, value = number.source, number.value()
            # by their text: 0.0 equals -0.0, and 1 equals 1.0 and True
            if value is not source.last and repr(value) != repr(source.last):
                if not _fits(value, source.last):
                    return False
                if number.rate and not self._rate_changed(source):
                    return False
                source.tensor.fill_(value)
                source.last = value  # behind it: a call that is given up in between fills it again
                changed = True
        holds = self._all if changed else self._always
        self._held = holds(self.trace.numbers)
        return self._held

    def _rate_changed(self, source: NumberSource) -> bool:
        """Whether a rate whose group has a factor is multiplied by it in the same place as when it was traced."""
        optimizer = source.place.optimizer
        known = self._schedulers.get(id(optimizer))
        if known is not None:
            if getattr(known(), "optimizer", None) is not optimizer:
                found = rate_scheduler(optimizer)
                if found is None:
                    return False
                self._schedulers[id(optimizer)] = weakref.ref(found)
            return True
        if not self._checked_rates:
            if not check_changed(optimizer, source.place.which):
                return False
            self._checked_rates = True
        return True

    def values_hold(self) -> bool:
        """Whether flags, strings and the like, and the sizes of containers, are unchanged."""
        try:
            for read, holder, expected in self.single:
                if read(holder) != expected:
                    return False
            for row in self.values:
                if not row.equal():
                    return False
            if self.sized and list(map(len, self.sized)) != self.sizes:
                return False
            for holder, keys in self.absent:
                if not holder.keys().isdisjoint(keys):
                    return False
            return not self.slow or all(b.holds() for b in self.slow)
        except (KeyError, TypeError, ValueError, RuntimeError):
            return False  # a key was removed, or values of another type cannot be compared

    def tensors_same(self) -> bool:
        """Whether the tensors are those that were bound."""
        try:
            for column in self.tensors:
                if not column.identical():
                    return False
        except KeyError:
            return False
        return not self.deep or all(slot.read() is tensor for slot, tensor in self.deep)

    # after a call

    def write(self) -> None:
        """Write the step's new values to Python."""
        for write in self.writes:
            write.apply()
        for source, number in self.finals:
            number.write(type(source.last)(source.tensor.item()))

    # messages

    def why(self) -> str | None:
        """The first condition that does not hold, as text."""
        numbers = [n.read() for n in self.trace.numbers]
        for source, value in zip(self.trace.numbers, numbers):
            if not source.born and source in self.sources and not _fits(value, source.last):
                return f"{source.name} was {source.last!r} and is {value!r}"
        for number in self.numbers:
            if number.source.others and number.value() is MISSING:
                return f"{number.source.name} was one number for several parameters"
        for guard in (*self.always, *self.others):
            if not guard.holds(numbers):
                names = ", ".join(
                    f"{self.trace.numbers[i].name} = {numbers[i]!r}" for i in leaves(guard.expr)
                )
                return f"{guard.describe([n.name for n in self.trace.numbers])}; now {names}"
        for b in self.baked:
            if not b.holds():
                now = item(b.place.holder, b.key, b.path)
                return f"{b.key!r} was {b.value!r} and is {now!r}"
        if any(not s.holds() for s in self.structures):
            return "a container has another size or other keys"
        return None


def _unique(items: Sequence[Any]) -> list[Any]:
    found: dict[Any, Any] = {}
    for x in items:
        where = (id(x.place), x.at) if isinstance(x, Structure) else (id(x.place), x.key, x.path)
        found.setdefault(where, x)
    return list(found.values())

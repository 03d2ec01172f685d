"""One `optimizer.step()` as part of the trace.

The optimizer's own code runs, with its state and hyperparameters exchanged for traced ones; parameters are
themselves, for code that tells them apart, and ops get what stands for them. Numbers
(learning rate, betas, counters) are traced numbers, see `numbers.py`; what else it reads is noted (`mirror.py`) and
becomes a condition under which the trace holds (`places.py`).
Optimizers and plain objects that it holds are treated as it is itself.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gflow.errors import GraphTraceError
from gflow.tracing.reads.steps import StepReading

from ..context.location import user_line
from ..context.threads import here_only
from ..context.threads import replaced as patched
from ..data.guards import Leaf
from ..data.places import (
    MISSING,
    BakedValue,
    NumberSource,
    OptimizerTrace,
    Place,
    PlainWrite,
    StateSlot,
    Structure,
)
from ..dispatch.clipping import NORM_TYPE, clip_groups
from ..dispatch.functions.rewrites import Rewrites
from ..dispatch.functions.stand_ins import functional, unwrap
from ..dispatch.recorder import Recorder, untraced
from ..dispatch.symbols.number_nodes import StateBranch, number_of
from ..dispatch.symbols.numbers import traced_functions, wrap
from ..program.shared import view_in
from .copies import attributes_stay
from .host_calls import module_names, real_ids, refused, refused_calls
from .mirror import SeenDict, class_constant, plain, watched
from .rates import scaled_rates
from .sparse import one_update
from .state import nested
from .step_hooks import HOOKS, without_hooks
from .unread_keys import foreign_keys

aten = torch.ops.aten

#: attributes by which PyTorch keeps book of calls: nothing that a step depends on
_BOOKKEEPING = (
    "_opt_called", "_step_count", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured",
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks", *HOOKS,
)  # fmt: skip
_DICTS = ("param_groups", "state", "defaults")
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class NewState(Exception):
    """The step made state that did not exist before it."""


class _Parted(Exception):
    """Numbers that were one before the step are not after it. tags: what tells them apart, by member."""

    def __init__(self, tags: dict[Any, int]) -> None:
        super().__init__("parted")
        self.tags = tags


def _is_number(value: Any) -> bool:
    """Whether a value is a Python number (numpy's float64 is a float)."""
    kind = type(value)
    return kind is int or kind is float or (isinstance(value, float) and kind.__name__ == "float64")


def _is_numpy_number(value: Any) -> bool:
    kind = type(value)
    return (
        kind.__module__ == "numpy"
        and kind.__name__ != "ndarray"
        and getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u", "f")
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN) and number_of(value) is None


def _is_helper(value: Any) -> bool:
    """Whether an object keeps plain Python state that the step may use."""
    module = type(value).__module__.partition(".")[0]
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, torch.nn.Module, *_PLAIN))
        and module
        not in (
            "torch",
            "builtins",
            "types",
            "functools",
            "collections",
            "logging",
            "weakref",
            "threading",
        )
    )


@dataclass
class _Record:
    """One container that a mirror stands for. `at`: its place, and the key and path there if it is not
    the place's own dict. `before`: what the mirror held at first; `baked`: conditions by key."""

    at: tuple[Any, ...]
    place: Place
    real: Any
    mirror: Any
    before: Any
    baked: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def address(self, key: Any) -> tuple[Place, Any, tuple[Any, ...]]:
        return (self.place, self.at[0], (*self.at[1:], key)) if self.at else (self.place, key, ())


class _Tracer:
    def __init__(
        self,
        recorder: Recorder,
        rewrites: Rewrites,
        optimizer: torch.optim.Optimizer,
        prefix: str,
        param_names: dict[int, str],
        capturable: bool,
        active: Callable[[], contextlib.AbstractContextManager[None]],
        tags: dict[Any, int],
    ) -> None:
        self.active, self.tags = active, tags
        self.widen = False
        self.where = f"{prefix} ({type(optimizer).__name__})"
        self.recorder, self.rewrites, self.optimizer = recorder, rewrites, optimizer
        self.prefix, self.param_names, self.capturable = prefix, param_names, capturable
        self.result = OptimizerTrace()
        self.parameters: dict[int, torch.Tensor] = {}
        self.records: list[_Record] = []
        self.objects: dict[int, tuple[Any, dict[str, Any], _Record]] = {}
        self.groups: list[tuple[int, dict[str, Any], SeenDict]] = []
        self.fixed: list[tuple[str, Any, Any]] = []
        self._mirrors: dict[int, Any] = {}
        self._sources: dict[Any, NumberSource] = {}
        self._equal: dict[Any, NumberSource] = {}
        self._finals: dict[int, dict[Any, Any]] = {}
        self._ends: dict[int, dict[Any, torch.Tensor]] = {}  # tensors by input, then by place
        self._widened: dict[int, torch.Tensor] = {}

    def place(self, kind: str, optimizer: Any, which: Any = None) -> Place:
        place = Place(optimizer, kind, which)
        place.locate()
        self.result.places.append(place)
        return place

    def containers(self) -> list[Any]:
        """The containers that mirrors stand for."""
        return [real for real, _ in self._mirrors.values()]

    # values in

    def number(self, place: Place, key: Any, path: tuple[Any, ...], value: float, name: str) -> Any:
        member = (id(place.holder), key, path)
        same = None
        if place.kind == "entry":
            same = (key, path, type(value), value, self.tags.get(member))
            known = self._equal.get(same)
            if known is not None:
                known.others.append(place)
                return wrap(self._node(known))
        dtype = torch.int64 if type(value) is int else torch.float64
        with untraced():
            tensor = torch.scalar_tensor(value, dtype=dtype)
        node = self.recorder.add_number(value, tensor, name, Leaf(len(self.recorder.numbers)))
        source = NumberSource(place, key, path, node.value, tensor, value, name)
        self.recorder.numbers.append(source)
        self._sources[node.value] = source
        self._nodes[id(source)] = node
        if same is not None:
            self._equal[same] = source
        return wrap(node)

    @property
    def _nodes(self) -> dict[int, Any]:
        return self.__dict__.setdefault("_node_table", {})

    def _node(self, source: NumberSource) -> Any:
        return self._nodes[id(source)]

    def value(
        self,
        place: Place,
        key: Any,
        value: Any,
        name: str,
        path: tuple[Any, ...] = (),
        baked: list[Any] | None = None,
    ) -> Any:
        """The traced form of a hyperparameter or state entry. baked: takes the conditions on it."""
        baked = [] if baked is None else baked
        if id(value) in self._mirrors:
            return self._mirrors[id(value)][1]
        if isinstance(value, torch.Tensor):
            traced = self.tensor(value, name)
            index = self.rewrites.stand_ins[id(value)].index
            slot = StateSlot(place, key, path, self.recorder.inputs[index].value)
            self.result.slots.append(slot)
            return value if id(value) in self.parameters else traced
        if _is_number(value):
            return self.number(place, key, path, value, name)
        if isinstance(value, tuple):
            items = [
                self.value(place, key, v, f"{name}.{i}", (*path, i), baked)
                for i, v in enumerate(value)
            ]
            if all(a is b for a, b in zip(items, value)):
                baked.append(BakedValue(place, key, value, path))
                return value
            baked.append(Structure(place, (key, *path), len(value), None))
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, list):
            made: list[Any] = []
            self._mirrors[id(value)] = (value, made)
            made += [
                self.value(place, key, v, f"{name}.{i}", (*path, i), baked)
                for i, v in enumerate(value)
            ]
            baked.append(Structure(place, (key, *path), len(value), None))
            self.records.append(_Record((key, *path), place, value, made, list(made)))
            return made
        if isinstance(value, dict) and not isinstance(value, SeenDict):
            return self.mapping(place, value, name, (key, *path))
        if _is_numpy_number(value):
            raise GraphTraceError(
                f"{self.where}: {name} is {value!r}, a NumPy number; a graph needs a Python number: "
                f"{value.item()!r}."
            )
        stand_in = refused(self.where, key, value)
        if stand_in is not None:
            return stand_in
        if isinstance(value, torch.optim.Optimizer) or _is_helper(value):
            self.object(value, name)
        elif isinstance(value, (set, deque, bytearray)):
            before, mine = value.copy(), value.copy()
            self.fixed.append((name, mine, mine.copy()))
            baked.append(BakedValue(place, key, before, path))
            return mine
        baked.append(BakedValue(place, key, value, path))
        return value

    def refuse_attribute(self, real: torch.Tensor, name: str) -> None:
        """
        Raises:
            GraphTraceError: always: the step has set an attribute of a parameter.
        """
        parameter = self.param_names.get(id(real), "a parameter")
        raise GraphTraceError(
            f"{self.where}: step() sets the attribute {name!r} of {parameter}; a graph would lose it. "
            "Keep it in self.state[parameter]."
        )

    def real(self, value: object) -> object:
        """The real tensor that a traced one stands for, or what else is given."""
        known = self.rewrites.reals.get(id(value))
        return value if known is None else known[1]

    def mapping(
        self, place: Place, real: dict[Any, Any], name: str, at: tuple[Any, ...] = ()
    ) -> SeenDict:
        """A mirror of a dict. at: where it stands, if it is not the place's own."""
        known = self._mirrors.get(id(real))
        if known is not None:
            return known[1]
        make = int if isinstance(real, Counter) else getattr(real, "default_factory", None)
        mirror = SeenDict(make=make)
        self._mirrors[id(real)] = (real, mirror)
        record = _Record(at, place, real, mirror, {})
        self.records.append(record)
        for key, value in real.items():
            where, top, path = record.address(key)
            traced = self.value(where, top, value, f"{name}.{key}", path, record.baked[key])
            dict.__setitem__(mirror, key, traced)
        record.before = plain(mirror)
        return mirror

    def tensor(self, real: torch.Tensor, name: str) -> torch.Tensor:
        """A state tensor or tensor hyperparameter."""
        known = self.rewrites.stand_ins.get(id(real))
        if known is not None:
            wrapper = known.wrapper
        else:
            index = len(self.recorder.inputs)
            wrapper = functional(self.recorder.add_input(real, "optimizer_state", name), real)
            self.rewrites.register(real, wrapper, index)
        if self.widen and wrapper.ndim == 0 and wrapper.dtype == torch.float32:
            if id(real) not in self._widened:
                with self.active():
                    self._widened[id(real)] = wrapper.to(torch.float64)
            return self._widened[id(real)]
        return wrapper

    def parameter(self, real: torch.Tensor) -> torch.Tensor:
        """Give a parameter what stands for it in this attempt: a failed one leaves the trace's own untouched."""
        if id(real) not in self.parameters:
            bases = self.rewrites.bases
            if id(real) in bases:
                self.parameter(bases[id(real)][1])
                return real
            made = self._copied(real, functional(unwrap(self.rewrites.wrapper_of(real)), real))
            for view, base in bases.values():
                if base is real:
                    with self.active():
                        seen = view_in(made, base, view)
                    self._copied(view, seen)
        return real

    def outside(self, tensors: Iterable[torch.Tensor]) -> None:
        """Likewise for what the trace knows of the tensors that the step reaches outside of the optimizer."""
        for real in tensors:
            known = self.rewrites.stand_ins.get(id(real))
            if known and self.recorder.inputs[known.index].role != "optimizer_state":
                self.parameter(real)

    def _copied(self, real: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Let `new` stand for a parameter, with its gradient."""
        old = self.rewrites.stand_ins[id(real)]
        if old.wrapper.grad is not None:
            new.grad = functional(unwrap(old.wrapper.grad), old.wrapper.grad)
        self.parameters[id(real)] = real
        self.rewrites.register(real, new, old.index)
        self.rewrites.stepped[id(new)] = real
        return new

    def object(self, obj: Any, prefix: str) -> None:
        """Mirror an optimizer, or another object, that the step reads."""
        if id(obj) in self.objects:
            return
        traced: dict[str, Any] = {}
        record = _Record((), self.place("self", obj), dict(vars(obj)), None, {})
        if not isinstance(obj, torch.optim.Optimizer):
            record.place.kind, record.place.which = "object", obj
        self.objects[id(obj)] = (obj, traced, record)
        if isinstance(obj, torch.optim.Optimizer):
            traced["param_groups"] = self._groups(obj, prefix)
            traced["state"] = self._state(obj, prefix)
            if isinstance(getattr(obj, "defaults", None), dict):
                place = self.place("defaults", obj)
                traced["defaults"] = self.mapping(place, obj.defaults, f"{prefix}.defaults")
            for hooks in HOOKS:
                traced[hooks] = OrderedDict()
        for key, value in vars(obj).items():
            if key not in _BOOKKEEPING and key not in traced:
                baked = record.baked[key]
                traced[key] = self.value(record.place, key, value, f"{prefix}.{key}", (), baked)
        record.before = {k: v for k, v in traced.items() if k not in (*_DICTS, *HOOKS)}

    def _groups(self, optimizer: Any, prefix: str) -> list[Any]:
        known = self._mirrors.get(id(optimizer.param_groups))
        if known is not None:
            return known[1]
        groups: list[Any] = []
        self._mirrors[id(optimizer.param_groups)] = (optimizer.param_groups, groups)
        for i, group in enumerate(optimizer.param_groups):
            known = self._mirrors.get(id(group))
            groups.append(known[1] if known is not None else self._group(optimizer, i, prefix))
        return groups

    def _group(self, optimizer: Any, i: int, prefix: str) -> SeenDict:
        group = optimizer.param_groups[i]
        new = SeenDict()
        self._mirrors[id(group)] = (group, new)
        record = _Record((), self.place("group", optimizer, i), group, new, {})
        for key, value in group.items():
            traced = value
            if key == "params":
                traced = [self.parameter(p) for p in value]
                self._mirrors[id(value)] = (value, traced)
            elif key in ("foreach", "fused"):
                traced = False
            elif key == "capturable" and self.capturable:
                traced = True
            elif key == NORM_TYPE:  # the ops depend on it
                record.baked[key].append(BakedValue(record.place, key, value))
            else:
                name = f"{prefix}.group{i}.{key}"
                traced = self.value(record.place, key, value, name, (), record.baked[key])
            dict.__setitem__(new, key, traced)
        record.before = plain(new)
        self.records.append(record)
        self.groups.append((i, group, new))
        return new

    def _state(self, optimizer: Any, prefix: str) -> SeenDict:
        known = self._mirrors.get(id(optimizer.state))
        if known is not None:
            return known[1]
        real = optimizer.state
        state = SeenDict(make=SeenDict)
        self._mirrors[id(real)] = (real, state)
        whole = self.place("state", optimizer)
        record = _Record((), whole, real, state, {})
        for key, entry in real.items():
            if not isinstance(key, torch.Tensor):
                name = str(key)
            else:
                name = self.param_names.get(id(key), f"param{len(record.before)}")
                # Counters in float64: bias corrections then are what eager's doubles give. Beside a 0-d parameter in
                # float32, a counter looks like any other state.
                self.widen = self.capturable and (key.ndim > 0 or key.dtype != torch.float32)
                self.parameter(key)
            name = f"{prefix}.{name}"
            if isinstance(entry, dict):
                place = self.place("entry", optimizer, key)
                traced: Any = self.mapping(place, entry, name)
            else:
                traced = self.value(whole, key, entry, name, (), record.baked[key])
            dict.__setitem__(state, key, traced)
            record.before[key] = traced
        self.widen = False
        self.records.append(record)
        return state

    # values out

    def finish(self, seen: dict[int, set[str]]) -> None:
        """Find what the step read, and what it changed."""
        for record in self.records:
            if isinstance(record.mirror, SeenDict):
                self._dict_read(record)
                self._dict_changed(record, plain(record.mirror))
            else:
                self._list_changed(record)
        for obj, _, record in self.objects.values():
            self._attributes_read(obj, record, seen[id(obj)])
        self._replace_tensors()
        for source in self._sources.values():
            self._part(source)
        for name, now, before in self.fixed:
            if len(now) != len(before) or any(a is not b and a != b for a, b in zip(now, before)):
                raise GraphTraceError(
                    f"{self.where}: step() changes {name}, a {type(now).__name__}; in a graph an optimizer "
                    "can only change tensors, numbers, flags, and lists and dicts of them."
                )

    def _replace_tensors(self) -> None:
        """What each tensor of the state has become.

        Raises:
            GraphTraceError: one that stands at several places has become several.
        """
        for index, ends in self._ends.items():
            new, *others = ends.values()
            if any(other is not new for other in others):
                keys = " and ".join(repr(key) for _, key, _ in ends)
                raise GraphTraceError(
                    f"{self.where}: {keys} are the same tensor before the step, but not after it; a graph updates "
                    "each tensor of the state in place. Make one of them a copy (.clone())."
                )
            real: Any = self.recorder.inputs[index].tensor
            # a counter that was widened is as before
            self.result.replaced[index] = new if new.dtype == real.dtype else new.to(real.dtype)

    def attributes_changed(self) -> None:
        """Find what the step has done to attributes; while they are exchanged."""
        for obj, traced, record in self.objects.values():
            ignored = {*_BOOKKEEPING, *_DICTS}
            for name in _DICTS:
                if name in traced and vars(obj).get(name) is not traced[name]:
                    raise GraphTraceError(
                        f"{self.where}: step() assigns another object to self.{name}; in a graph it must "
                        "update the existing object in place."
                    )
            after = {k: v for k, v in vars(obj).items() if k not in ignored}
            self._dict_changed(record, after)

    def _dict_read(self, record: _Record) -> None:
        mirror, result = record.mirror, self.result
        for key in mirror.seen.keys:
            if key in record.before:
                for condition in record.baked.get(key, ()):
                    kind = result.baked if isinstance(condition, BakedValue) else result.structures
                    kind.append(condition)  # type: ignore[arg-type]
            else:
                place, top, path = record.address(key)
                result.baked.append(BakedValue(place, top, MISSING, path))
        if mirror.seen.whole and record.place.kind != "class":
            keys = tuple(record.real)
            result.structures.append(Structure(record.place, record.at, len(keys), keys))

    def _attributes_read(self, obj: Any, record: _Record, names: set[str]) -> None:
        for name in sorted(names):
            if name in record.before:
                for condition in record.baked.get(name, ()):
                    kind = (
                        self.result.baked
                        if isinstance(condition, BakedValue)
                        else self.result.structures
                    )
                    kind.append(condition)  # type: ignore[arg-type]
            elif name not in vars(obj) and not name.startswith("__"):
                found = class_constant(obj, name)
                if found is not None and _is_plain(found[1]):
                    place = self.place("class", obj, found[0])
                    self.result.baked.append(BakedValue(place, name, found[1]))
                if name == "step" or (
                    name not in _BOOKKEEPING and not callable(getattr(type(obj), name, None))
                ):
                    self.result.baked.append(BakedValue(record.place, name, MISSING))

    def _dict_changed(self, record: _Record, after: dict[Any, Any]) -> None:
        for key, value in after.items():
            if key == "params":
                continue
            before = record.before.get(key, MISSING)
            if value is before and not isinstance(value, torch.Tensor):
                continue
            if before is MISSING and isinstance(value, SeenDict) and not dict.__len__(value):
                continue  # asked for, and left empty
            old = record.real.get(key)
            if before is MISSING and isinstance(key, torch.Tensor):
                raise NewState(f"of a parameter: {', '.join(map(str, dict.keys(value)))}")
            self.changed(record.address(key), old, before, value)
        for key, before in record.before.items():
            if key not in after:
                self.changed(record.address(key), None, before, MISSING)

    def _list_changed(self, record: _Record) -> None:
        if len(record.mirror) != len(record.before):
            raise GraphTraceError(
                f"{self.where}: step() changes the length of the list at {record.at[0]!r} from "
                f"{len(record.before)} to {len(record.mirror)}; a graph needs lists of fixed length."
            )
        for i, (before, after) in enumerate(zip(record.before, record.mirror)):
            if after is not before or isinstance(after, torch.Tensor):
                self.changed(record.address(i), record.real[i], before, after)

    def changed(
        self, at: tuple[Place, Any, tuple[Any, ...]], real: Any, old: Any, new: Any
    ) -> None:
        """One value after the step: `real` before it, `old` and `new` as traced."""
        key = at[1]
        if isinstance(real, torch.Tensor) and isinstance(new, torch.Tensor):
            old, new = self._traced(old), self._traced(new)
            if new.shape != real.shape:
                raise GraphTraceError(
                    f"{self.where}: step() changes the shape of state {key!r} from "
                    f"{list(real.shape)} to {list(new.shape)}; a graph "
                    "needs state of fixed shape."
                )
            widened = self.capturable and new.ndim == 0 and real.dtype == torch.float32
            if new.dtype != real.dtype and not widened:
                raise NewState(f"{key} in {new.dtype}, which was in {real.dtype}")
            ends = self._ends.setdefault(self.rewrites.stand_ins[id(real)].index, {})
            where = (id(at[0].holder), at[1], at[2])
            if new is not old or where not in ends:  # an item of a list that is not there any more
                ends[where] = new
        elif (node := number_of(old)) is not None and (number_of(new) or _is_number(new)):
            self._number_changed(at, self._sources[node.value], new)
        elif isinstance(new, torch.Tensor):
            raise NewState(str(key))
        elif number_of(new) is not None:
            self._born(at, new)
        elif isinstance(new, (tuple, list)) and isinstance(old, (tuple, list)):
            self._items_changed(at, real, old, new)
        elif isinstance(old, SeenDict) and old is not new and isinstance(new, dict):
            raise NewState(str(key))
        elif new is MISSING or _is_plain(new):
            if new is MISSING or old is MISSING or type(old) is not type(new) or old != new:
                self.result.writes.append(PlainWrite(*at, new))
        elif isinstance(new, (dict, list, tuple)) and old is not new:
            self._container(at, new)
        elif old is not new:
            raise GraphTraceError(
                f"{self.where}: step() sets {key!r} from {old!r} to {new!r}; in a graph an "
                "optimizer can only change tensors, numbers, and plain values (bool, str, None)."
            )

    def _traced(self, tensor: Any) -> Any:
        """What stands for a tensor, if it is a real one."""
        known = self.rewrites.stand_ins.get(id(tensor))
        return tensor if known is None else known.wrapper

    def _items_changed(self, at: Any, real: Any, old: Any, new: Any) -> None:
        if len(old) != len(new) or type(old) is not type(new):
            raise GraphTraceError(
                f"{self.where}: step() changes {at[1]!r} from a {type(old).__name__} of {len(old)} to a "
                f"{type(new).__name__} of {len(new)}; in a graph its type and length must stay the same."
            )
        for i, (r, b, a) in enumerate(zip(real, old, new, strict=True)):
            if b is not a:
                self.changed((at[0], at[1], (*at[2], i)), r, b, a)

    def _container(self, at: Any, new: Any) -> None:
        """A container of numbers that the step has made."""
        items = list(new.items()) if isinstance(new, dict) else list(enumerate(new))
        if any(isinstance(v, torch.Tensor) for _, v in items):
            raise NewState(str(at[1]))
        blank: Any = {k: None for k, _ in items} if isinstance(new, dict) else [None] * len(items)
        if isinstance(new, tuple):
            blank = tuple(blank)
        self.result.writes.append(PlainWrite(at[0], at[1], at[2], blank))
        for key, value in items:
            if value is not None:
                self.changed((at[0], at[1], (*at[2], key)), None, None, value)

    def _born(self, at: tuple[Place, Any, tuple[Any, ...]], new: Any) -> None:
        """A number where there was none: an argument of its own brings it to the host."""
        node = number_of(new)
        assert node is not None
        start: float = 0 if node.is_integer else 0.0
        with untraced():
            tensor = torch.scalar_tensor(start, dtype=node.value.dtype)
        place, key, path = at
        name = ".".join(map(str, (self.prefix, "new", len(self.recorder.numbers), key, *path)))
        value = self.recorder.add_number(start, tensor, name, None).value
        source = NumberSource(place, key, path, value, tensor, start, name, node.value, born=True)
        self.recorder.numbers.append(source)

    def _number_changed(self, at: Any, source: NumberSource, after: Any) -> None:
        node, member = number_of(after), (id(at[0].holder), at[1], at[2])
        finals = self._finals.setdefault(id(source), {})
        dtype = source.value.dtype
        if node is None:
            if type(after) is not int and dtype == torch.int64:  # another kind from here on
                finals[member] = after
                self.result.writes.append(PlainWrite(at[0], at[1], at[2], after))
                return
            final = self.recorder.record_number(
                aten.scalar_tensor.default, (after,), dtype, {"dtype": dtype}
            )
        elif node.value is source.value:
            return
        else:
            final = node.value
        finals[member] = final
        if final.dtype == dtype:
            source.final = final
        else:
            self._born(at, after)

    def _part(self, source: NumberSource) -> None:
        """Numbers that are one number stay one."""
        if not source.others:
            return
        members = [(id(p.holder), source.key, source.path) for p in (source.place, *source.others)]
        finals = self._finals.get(id(source), {})
        ends = [finals.get(member) for member in members]
        if any(end is not ends[0] for end in ends):
            kinds = {id(end): n for n, end in enumerate(ends)}
            base = 1 + len(members) * self.tags.get(members[0], 0)
            raise _Parted({m: base + kinds[id(end)] for m, end in zip(members, ends)})


@contextlib.contextmanager
def _compiling(active: bool) -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true: optimizers skip device checks of the
    capturable form."""
    if not active:
        yield
        return
    compiling = here_only(torch.compiler.is_compiling, lambda: True)
    with patched((torch.compiler, "is_compiling", compiling)):
        yield


@contextlib.contextmanager
def _exchanged(objects: dict[int, tuple[Any, dict[str, Any], _Record]]) -> Iterator[None]:
    """Let objects have their traced attributes, then put the whole of their `__dict__` back."""
    saved = [(obj, dict(vars(obj))) for obj, _, _ in objects.values()]
    try:
        for obj, traced, _ in objects.values():
            vars(obj).update(traced)
        yield
    finally:
        for obj, attributes in saved:
            vars(obj).clear()
            vars(obj).update(attributes)


def trace_step(
    recorder: Recorder,
    rewrites: Rewrites,
    optimizer: torch.optim.Optimizer,
    prefix: str,
    param_names: dict[int, str],
    active: Callable[[], contextlib.AbstractContextManager[None]],
    step: Callable[[Any], None] = lambda optimizer: optimizer.step(),
) -> OptimizerTrace:
    """Record one step. First as the author set it up; if it branches on a number that only
    exists on the device, once more in the optimizer's capturable form. Numbers of several parameters
    that are equal are traced as one, and apart where the step treats them differently.

    Raises:
        GraphTraceError: the step cannot be traced; with the author's line.
    """
    has_capturable = any("capturable" in g for o in nested(optimizer) for g in o.param_groups)
    attempts = [False, True] if has_capturable else [False]
    tags: dict[Any, int] = {}
    while True:
        mark, stand_ins = recorder.mark(), dict(rewrites.stand_ins)
        tracer = _Tracer(
            recorder, rewrites, optimizer, prefix, param_names, attempts[0], active, tags
        )
        try:
            return _trace_step(tracer, step)
        except (StateBranch, NewState, _Parted) as error:
            recorder.rewind(mark)
            rewrites.stand_ins = stand_ins
            if isinstance(error, NewState):
                raise
            if isinstance(error, _Parted):
                tags = tags | error.tags
                continue
            if len(attempts) > 1:
                attempts = attempts[1:]
                continue
            raise GraphTraceError(
                f"{user_line(error)}{prefix} ({type(optimizer).__name__}): step() makes "
                "Python choose by the value of a tensor (an `if`, float() or comparison on "
                ".item() of state). Use "
                "torch.where on tensors, or keep the counter as a Python number in the state."
            ) from error


def _trace_step(tracer: _Tracer, step: Callable[[Any], None]) -> OptimizerTrace:
    optimizer = tracer.optimizer
    for parameter in [p for o in nested(optimizer) for g in o.param_groups for p in g["params"]]:
        tracer.parameter(parameter)
    tracer.object(optimizer, tracer.prefix)
    objects = [obj for obj, _, _ in tracer.objects.values()]
    reading = StepReading(objects, tracer.containers(), tracer.where)
    tracer.outside(reading.tensors)
    parameters = list(tracer.parameters.values())
    groups = [mirror for _, _, mirror in tracer.groups]
    names = [n for o in objects for n in module_names(type(o))]
    names = list({id(n): n for n in names}.values())
    with (
        tracer.active(),
        _compiling(tracer.capturable),
        traced_functions(names),
        refused_calls(tracer.where, names),
        real_ids(tracer.real),
        without_hooks(),
        attributes_stay(parameters, tracer.refuse_attribute),
    ):
        with _exchanged(tracer.objects):
            clip_groups(groups)
            with (
                watched(objects) as seen,
                scaled_rates(optimizer, groups, tracer.where),
                one_update(tracer.where),
            ):
                step(optimizer)
            tracer.attributes_changed()
        tracer.finish(seen)
    tracer.result.reads = reading.after()
    problem = foreign_keys(objects, tracer.groups)
    if problem is not None:
        raise GraphTraceError(f"{tracer.where}: {problem}")
    return tracer.result

"""What an optimizer's code sees while its step is traced: hyperparameters and state as traced numbers and tensors."""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gflow.errors import GraphTraceError

from ..data.guards import Leaf
from ..data.places import (
    BakedValue,
    NumberSource,
    OptimizerTrace,
    Place,
    StateSlot,
    Structure,
)
from ..dispatch.clipping import NORM_TYPE
from ..dispatch.functions.proxies import functional, unwrap
from ..dispatch.functions.rewrites import Rewrites
from ..dispatch.recorder import Recorder, untraced
from ..dispatch.symbols.number_nodes import number_of
from ..dispatch.symbols.numbers import wrap
from ..program.shared import view_in
from .host_calls import refused
from .mirror import SeenDict, plain
from .step_hooks import HOOKS

#: attributes in which PyTorch records calls; a step does not depend on them
BOOKKEEPING = (
    "_opt_called", "_step_count", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured",
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks", *HOOKS,
)  # fmt: skip
#: the dicts and lists of an optimizer that are replaced
DICTS = ("param_groups", "state", "defaults")
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def is_number(value: Any) -> bool:
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


def is_plain(value: Any) -> bool:
    """Whether a value is a plain Python value, or a list, tuple or dict of such, which is compared rather than
    traced."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN) and number_of(value) is None


def _is_of_torch(optimizer: Any) -> bool:
    """Whether an optimizer is one of PyTorch's, whose `foreach` and `fused` steps compute the same as the plain one;
    others may round otherwise in each."""
    base = torch.optim.Optimizer
    return any(
        c.__module__.startswith("torch.optim.") for c in type(optimizer).__mro__ if c is not base
    )


def _is_helper(value: Any) -> bool:
    """Whether an object keeps plain Python state that the step may use."""
    module = type(value).__module__.partition(".")[0]
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, torch.nn.Module, *_PLAIN))
        and (module != "torch" or isinstance(value, (LRScheduler, ReduceLROnPlateau)))
        and module not in ("builtins", "functools", "logging", "threading")
        and not isinstance(value, (FunctionType, MethodType, ModuleType))
    )


@dataclass
class Record:
    """A container that a mirror replaces.

    Args:
        at: the key and path in `place`; empty for the place's own dict.
        before: the initial contents of the mirror.
        baked: conditions, by key.
    """

    at: tuple[Any, ...]
    place: Place
    real: Any
    mirror: Any
    before: Any
    baked: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def address(self, key: Any) -> tuple[Place, Any, tuple[Any, ...]]:
        return (self.place, self.at[0], (*self.at[1:], key)) if self.at else (self.place, key, ())


class Exchange:
    """Replaces an optimizer's values by traced ones: numbers, tensors, groups, state, and attributes of its
    helpers."""

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
        self.records: list[Record] = []
        self.objects: dict[int, tuple[Any, dict[str, Any], Record]] = {}
        self.groups: list[tuple[int, dict[str, Any], SeenDict]] = []
        self.fixed: list[tuple[str, Any, Any]] = []
        self._mirrors: dict[int, Any] = {}
        self._sources: dict[Any, NumberSource] = {}
        self._equal: dict[Any, NumberSource] = {}
        self._finals: dict[int, dict[Any, Any]] = {}
        self._ends: dict[int, dict[Any, torch.Tensor]] = {}  # the final tensors, by input and place
        self._widened: dict[int, torch.Tensor] = {}

    def place(self, kind: str, optimizer: Any, which: Any = None) -> Place:
        place = Place(optimizer, kind, which)
        place.locate()
        self.result.places.append(place)
        return place

    def containers(self) -> list[Any]:
        """The containers that mirrors replace."""
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
            tensor = torch.scalar_tensor(value, dtype=dtype, device="cpu")
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
        """The traced form of a hyperparameter or state entry. baked: the list to which conditions on it are added."""
        baked = [] if baked is None else baked
        if id(value) in self._mirrors:
            return self._mirrors[id(value)][1]
        proxy = refused(self.where, key, value)
        if proxy is not None:
            return proxy
        if isinstance(value, torch.Tensor):
            traced = self.tensor(value, name)
            index = self.rewrites.proxies[id(value)].index
            slot = StateSlot(place, key, path, self.recorder.inputs[index].value)
            self.result.slots.append(slot)
            return value if id(value) in self.parameters else traced
        if is_number(value):
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
            self.records.append(Record((key, *path), place, value, made, list(made)))
            return made
        if isinstance(value, dict) and not isinstance(value, SeenDict):
            return self.mapping(place, value, name, (key, *path))
        if _is_numpy_number(value):
            raise GraphTraceError(
                f"{self.where}: {name} is {value!r}, a NumPy number; a graph needs a Python number: "
                f"{value.item()!r}."
            )
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
        """Refuse a step that sets an attribute of a parameter.

        Raises:
            GraphTraceError: always.
        """
        parameter = self.param_names.get(id(real), "a parameter")
        raise GraphTraceError(
            f"{self.where}: step() sets the attribute {name!r} of {parameter}; a graph would lose it. "
            "Keep it in self.state[parameter]."
        )

    def real(self, value: object) -> object:
        """The real tensor that a traced one represents; any other value itself."""
        known = self.rewrites.reals.get(id(value))
        return value if known is None else known[1]

    def mapping(
        self, place: Place, real: dict[Any, Any], name: str, at: tuple[Any, ...] = ()
    ) -> SeenDict:
        """A mirror of a dict. at: its path, if it is not the place's own."""
        known = self._mirrors.get(id(real))
        if known is not None:
            return known[1]
        make = int if isinstance(real, Counter) else getattr(real, "default_factory", None)
        mirror = SeenDict(make=make, kind=type(real))
        self._mirrors[id(real)] = (real, mirror)
        record = Record(at, place, real, mirror, {})
        self.records.append(record)
        for key, value in real.items():
            where, top, path = record.address(key)
            traced = self.value(where, top, value, f"{name}.{key}", path, record.baked[key])
            dict.__setitem__(mirror, key, traced)
        record.before = plain(mirror)
        return mirror

    def tensor(self, real: torch.Tensor, name: str) -> torch.Tensor:
        """A state tensor or tensor hyperparameter."""
        known = self.rewrites.proxies.get(id(real))
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
        """Set the traced tensor of a parameter for this attempt; a failed attempt does not change the trace's own."""
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
        """Set the traced tensors of tensors that the step reaches outside of the optimizer, likewise."""
        for real in tensors:
            known = self.rewrites.proxies.get(id(real))
            if known and self.recorder.inputs[known.index].role != "optimizer_state":
                self.parameter(real)

    def _copied(self, real: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Let `new` represent a parameter, with its gradient."""
        old = self.rewrites.proxies[id(real)]
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
        record = Record((), self.place("self", obj), dict(vars(obj)), None, {})
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
            if key not in BOOKKEEPING and key not in traced:
                baked = record.baked[key]
                traced[key] = self.value(record.place, key, value, f"{prefix}.{key}", (), baked)
        record.before = {k: v for k, v in traced.items() if k not in (*DICTS, *HOOKS)}

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
        record = Record((), self.place("group", optimizer, i), group, new, {})
        for key, value in group.items():
            traced = value
            if key == "params":
                traced = [self.parameter(p) for p in value]
                self._mirrors[id(value)] = (value, traced)
            elif key in ("foreach", "fused") and _is_of_torch(optimizer):
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
        state = SeenDict(make=SeenDict, kind=type(real))
        self._mirrors[id(real)] = (real, state)
        whole = self.place("state", optimizer)
        record = Record((), whole, real, state, {})
        for key, entry in real.items():
            if not isinstance(key, torch.Tensor):
                name = str(key)
            else:
                name = self.param_names.get(id(key), f"param{len(record.before)}")
                # Counters in float64: bias corrections then equal those of eager's doubles. For a 0-d parameter in
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

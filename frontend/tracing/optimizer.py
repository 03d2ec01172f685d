"""One `optimizer.step()` as part of the trace.

The optimizer's own code runs, with its parameters, state and hyperparameters exchanged for
traced ones. Numbers (learning rate, betas, counters) are traced numbers, see `numbers.py`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import GraphTraceError
from .clipping import MAX_NORM, NORM_TYPE, clip_groups
from .location import user_line
from .numbers import Leaf, StateBranch, number_of, traced_functions, wrap
from .recorder import Recorder, untraced
from .rewrites import Rewrites, functional, unwrap
from .shared import view_in
from .threads import here_only
from .threads import replaced as patched
from .trace import TraceValue

aten = torch.ops.aten


class NewState(Exception):
    """The step made state that did not exist before it."""


@dataclass
class Place:
    """A dict that belongs to an optimizer: a parameter group, the state of a parameter (or
    another key), the whole state, the defaults, or its own attributes. `load_state_dict` puts
    new dicts there; `locate` finds them."""

    optimizer: torch.optim.Optimizer
    kind: str
    which: Any = None
    holder: dict[Any, Any] = field(default_factory=dict)

    def locate(self) -> bool:
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
        else:
            self.holder = vars(optimizer)
        return True


def _item(holder: dict[Any, Any], key: Any, path: tuple[int, ...]) -> Any:
    value = holder[key]
    for step in path:
        value = value[step]
    return value


@dataclass(frozen=True)
class StateSlot:
    """Where the tensor behind the input `value` lives in an optimizer."""

    place: Place
    key: Any
    path: tuple[int, ...]
    value: TraceValue

    def read(self) -> Any:
        try:
            return _item(self.place.holder, self.key, self.path)
        except (KeyError, IndexError, TypeError):
            return None


@dataclass
class NumberSource:
    """Where the number behind the scalar input `value` lives on the host: `place[key]`, or
    an item `path` of the tuple there. `tensor` is the argument that carries it, `last` its
    value there, `final` what the step assigns to it."""

    place: Place
    key: Any
    path: tuple[int, ...]
    value: TraceValue
    tensor: torch.Tensor
    last: float
    name: str
    final: TraceValue | None = None

    def read(self) -> Any:
        return _item(self.place.holder, self.key, self.path)

    def write(self, value: float) -> None:
        def put(old: Any, path: tuple[int, ...]) -> Any:
            if not path:
                return value
            items = list(old)
            items[path[0]] = put(items[path[0]], path[1:])
            return type(old)(items)

        holder = self.place.holder
        holder[self.key] = put(holder[self.key], self.path)
        self.last = value


@dataclass(frozen=True)
class BakedValue:
    """A hyperparameter that is no number: the trace holds while it stays equal."""

    place: Place
    key: Any
    value: Any

    def holds(self) -> bool:
        current = self.place.holder.get(self.key)
        return current is self.value or bool(current == self.value)


@dataclass
class OptimizerTrace:
    """What tracing one optimizer leaves for the caller."""

    baked: list[BakedValue] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    slots: list[StateSlot] = field(default_factory=list)
    replaced: dict[int, torch.Tensor] = field(default_factory=dict)


def _is_plain_number(value: Any) -> bool:
    return type(value) in (int, float)


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
    ) -> None:
        self.active = active
        self.widen = False
        self.where = f"{prefix} ({type(optimizer).__name__})"
        self.recorder, self.rewrites, self.optimizer = recorder, rewrites, optimizer
        self.prefix, self.param_names, self.capturable = prefix, param_names, capturable
        self.result = OptimizerTrace()
        self.parameters: dict[int, torch.Tensor] = {}
        self._sources: dict[TraceValue, NumberSource] = {}

    def place(self, kind: str, which: Any = None) -> Place:
        place = Place(self.optimizer, kind, which)
        place.locate()
        self.result.places.append(place)
        return place

    # values in

    def number(self, place: Place, key: Any, path: tuple[int, ...], value: float, name: str) -> Any:
        dtype = torch.float64 if type(value) is float else torch.int64
        with untraced():
            tensor = torch.scalar_tensor(value, dtype=dtype)
        node = self.recorder.add_number(value, tensor, name, Leaf(len(self.recorder.numbers)))
        source = NumberSource(place, key, path, node.value, tensor, value, name)
        self.recorder.numbers.append(source)
        self._sources[node.value] = source
        return wrap(node)

    def value(
        self, place: Place, key: Any, value: Any, name: str, path: tuple[int, ...] = ()
    ) -> Any:
        """The traced form of a hyperparameter or state entry."""
        if isinstance(value, torch.Tensor):
            traced = self.tensor(value, name)
            index = self.rewrites.stand_ins[id(value)].index
            slot = StateSlot(place, key, path, self.recorder.inputs[index].value)
            self.result.slots.append(slot)
            return traced
        if _is_plain_number(value):
            return self.number(place, key, path, value, name)
        if type(value) in (tuple, list) and any(_is_plain_number(v) for v in value):
            return type(value)(
                self.value(place, key, v, f"{name}.{i}", (*path, i)) for i, v in enumerate(value)
            )
        if not path:
            self.result.baked.append(BakedValue(place, key, value))
        return value

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
            with self.active():
                return wrapper.to(torch.float64)
        return wrapper

    def parameter(self, real: torch.Tensor) -> torch.Tensor:
        """A parameter of this attempt: a failed attempt leaves the trace's own untouched."""
        known = self.parameters.get(id(real))
        if known is None:
            bases = self.rewrites.bases
            if id(real) in bases:
                self.parameter(bases[id(real)][1])
                return self.parameters[id(real)]
            known = self._copied(real, functional(unwrap(self.rewrites.wrapper_of(real)), real))
            for view, base in bases.values():
                if base is real:
                    with self.active():
                        seen = view_in(known, base, view)
                    self._copied(view, seen)
        return known

    def _copied(self, real: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Let `new` stand for a parameter, with its gradient."""
        old = self.rewrites.stand_ins[id(real)]
        if old.wrapper.grad is not None:
            new.grad = functional(unwrap(old.wrapper.grad), old.wrapper.grad)
        self.parameters[id(real)] = new
        self.rewrites.register(real, new, old.index)
        return new

    def groups(self) -> list[dict[str, Any]]:
        groups = []
        for i, group in enumerate(self.optimizer.param_groups):
            new: dict[str, Any] = {}
            place = self.place("group", i)
            for key, value in group.items():
                if key == "params":
                    new[key] = [self.parameter(p) for p in value]
                elif key in ("foreach", "fused"):
                    new[key] = False
                elif key == NORM_TYPE:
                    self.result.baked.append(BakedValue(place, key, value))
                    new[key] = value
                elif key == "capturable" and self.capturable:
                    new[key] = True
                else:
                    new[key] = self.value(place, key, value, f"{self.prefix}.group{i}.{key}")
            missing = {MAX_NORM, NORM_TYPE} - group.keys()
            self.result.baked += [BakedValue(place, key, None) for key in missing]
            groups.append(new)
        return groups

    def state(self) -> defaultdict[Any, Any]:
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, entry in self.optimizer.state.items():
            place = self.place("entry", key)
            if isinstance(key, torch.Tensor):
                name = self.param_names.get(id(key), f"param{len(state)}")
                # Counters in float64: bias corrections then are what eager's doubles give.
                self.widen = self.capturable and key.ndim > 0
                key = self.parameter(key)
            else:
                name = str(key)
            if isinstance(entry, dict):
                state[key] = {
                    k: self.value(place, k, v, f"{self.prefix}.{name}.{k}")
                    for k, v in entry.items()
                }
            else:
                state[key] = self.value(self.place("state"), key, entry, f"{self.prefix}.{name}")
        self.widen = False
        return state

    # values out

    def finish(self, old: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any]) -> None:
        """Find what the step changed in one dict: `old` real, `before` and `after` traced."""
        for key, value in after.items():
            if key == "params":
                continue
            if key not in before:
                if value is not None:
                    raise NewState(str(key))
            elif value is not before[key] or isinstance(value, torch.Tensor):
                self.changed(key, old.get(key), before[key], value)

    def changed(self, key: Any, real: Any, before: Any, after: Any) -> None:
        if isinstance(real, torch.Tensor) and isinstance(after, torch.Tensor):
            if after.shape != real.shape:
                raise GraphTraceError(
                    f"{self.where}: step() changes the shape of state {key!r} from "
                    f"{list(real.shape)} to {list(after.shape)}; a graph "
                    "needs state of fixed shape."
                )
            if after.dtype != real.dtype:
                after = after.to(real.dtype)
            self.result.replaced[self.rewrites.stand_ins[id(real)].index] = after
        elif (node := number_of(before)) is not None:
            self._number_changed(key, self._sources[node.value], after)
        elif isinstance(before, (tuple, list)) and isinstance(after, (tuple, list)):
            for r, b, a in zip(real, before, after, strict=True):
                if b is not a:
                    self.changed(key, r, b, a)
        elif before is None and after is not None:
            raise NewState(str(key))
        elif not (isinstance(before, dict) or before == after):
            raise GraphTraceError(
                f"{self.where}: step() sets {key!r} from {before!r} to {after!r}; in a graph an "
                "optimizer can only change tensors and numbers."
            )

    def _number_changed(self, key: Any, source: NumberSource, after: Any) -> None:
        node = number_of(after)
        if node is None:
            if not _is_plain_number(after):
                raise NewState(str(key))
            dtype = source.tensor.dtype
            source.final = self.recorder.record_number(
                aten.scalar_tensor.default, (after,), dtype, {"dtype": dtype}
            )
        elif node.value is source.value:
            return
        elif node.value.dtype != source.value.dtype:
            raise GraphTraceError(
                f"{self.where}: step() changes {source.name} from {type(source.last).__name__} "
                "to another kind of number; start it as a float."
            )
        else:
            source.final = node.value


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Own numbers of an optimizer object (`self.t = 0`)."""
    return {
        k: v
        for k, v in vars(optimizer).items()
        if _is_plain_number(v) and not k.startswith("_") and k != "defaults"
    }


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
def replaced(optimizer: torch.optim.Optimizer, **attributes: Any) -> Iterator[None]:
    """Set attributes of an optimizer, then put its whole `__dict__` back."""
    saved = dict(vars(optimizer))
    vars(optimizer).update(attributes)
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(saved)


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
    exists on the device, once more in the optimizer's capturable form."""
    has_capturable = any("capturable" in g for g in optimizer.param_groups)
    for capturable in (False, True):
        mark, stand_ins = recorder.mark(), dict(rewrites.stand_ins)
        try:
            return _trace_step(
                recorder, rewrites, optimizer, prefix, param_names, active, capturable, step
            )
        except (StateBranch, NewState) as error:
            recorder.rewind(mark)
            rewrites.stand_ins = stand_ins
            if isinstance(error, NewState):
                raise
            if capturable or not has_capturable:
                raise GraphTraceError(
                    f"{user_line(error)}{prefix} ({type(optimizer).__name__}): step() makes "
                    "Python choose by the value of a tensor (an `if`, float() or comparison on "
                    ".item() of state). Use "
                    "torch.where on tensors, or keep the counter as a Python number in the state."
                ) from error
    raise AssertionError("unreachable")


def _trace_step(
    recorder: Recorder,
    rewrites: Rewrites,
    optimizer: torch.optim.Optimizer,
    prefix: str,
    param_names: dict[int, str],
    active: Callable[[], contextlib.AbstractContextManager[None]],
    capturable: bool,
    step: Callable[[Any], None],
) -> OptimizerTrace:
    tracer = _Tracer(recorder, rewrites, optimizer, prefix, param_names, capturable, active)
    groups, state = tracer.groups(), tracer.state()
    own = _attributes(optimizer)
    place = tracer.place("self")
    own_traced = {k: tracer.value(place, k, v, f"{prefix}.{k}") for k, v in own.items()}
    place = tracer.place("defaults")
    defaults = {
        k: tracer.value(place, k, v, f"{prefix}.defaults.{k}")
        for k, v in optimizer.defaults.items()
    }
    before_groups = [dict(g) for g in groups]
    before_state = {k: dict(v) if isinstance(v, dict) else v for k, v in state.items()}
    real_state = {
        tracer.parameter(k) if isinstance(k, torch.Tensor) else k: v
        for k, v in optimizer.state.items()
    }
    with active(), _compiling(capturable), traced_functions():
        with replaced(optimizer, param_groups=groups, state=state, defaults=defaults, **own_traced):
            clip_groups(groups)
            try:
                step(optimizer)
            except TypeError as error:
                if "closure" in str(error):
                    raise GraphTraceError(
                        f"{prefix} ({type(optimizer).__name__}): step() needs a closure, so it "
                        "runs the model several times; a graph holds one update per call."
                    ) from error
                raise
            own_after = {k: vars(optimizer).get(k) for k in own}
        for real, before, after in zip(optimizer.param_groups, before_groups, groups, strict=True):
            tracer.finish(real, before, after)
        for key, entry in state.items():
            if isinstance(entry, dict):
                if key not in before_state:
                    if any(v is not None for v in entry.values()):
                        raise NewState(str(key))
                    continue
                tracer.finish(real_state[key], before_state[key], entry)
            elif key not in before_state:
                raise NewState(str(key))
            else:
                tracer.changed(key, real_state[key], before_state[key], entry)
        tracer.finish(own, own_traced, own_after)
    return tracer.result

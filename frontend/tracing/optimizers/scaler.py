"""Loss scaling as part of the trace.

It records the computations of `torch.amp.GradScaler` as ops. The loss's gradient is multiplied by the scale, and
gradients are divided by it in float32. If one of an optimizer's gradients is inf or nan, all values that its step
changed keep their old value. The scale and its growth tracker are the scaler's own tensors, inputs of role
`scaler_state` that each step updates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import OptState

from gflow.errors import GraphTraceError

from ..context.location import Locator
from ..data.places import BakedValue, OptimizerTrace, Place, StateSlot
from ..data.values import TraceOp, TraceValue
from ..dispatch.clipping import clip_groups
from ..dispatch.functions.proxies import TensorProxy, functional, unwrap
from ..dispatch.functions.rewrites import Rewrites
from ..dispatch.recorder import Recorder, describe
from .rates import scaled_rates
from .step_hooks import without_hooks

aten = torch.ops.aten
_FACTORS = ("_growth_factor", "_backoff_factor", "_growth_interval", "_enabled")
_HALVES = (torch.float16, torch.bfloat16)
_PLAIN = (
    "{where}: step() sets {name!r} from Python (a flag, or a number that is new), which cannot be undone where a "
    "gradient scaler finds gradients that are not finite. Start it as a number, or leave the scaler out."
)


class Tracing(Protocol):
    """The interface of the trace in progress that this file uses."""

    recorder: Recorder
    rewrites: Rewrites
    locator: Locator
    rebound: dict[int, torch.Tensor]

    def active(self) -> contextlib.AbstractContextManager[None]: ...


@dataclass
class Before:
    """The values of all inputs before an optimizer's step, and the number of traced numbers."""

    values: dict[int, TraceValue]
    numbers: int


@dataclass
class LossScale:
    """Loss scaling in one trace. `scaler`: a `torch.amp.GradScaler`, or one with a constant `scale_factor`."""

    scaler: Any
    session: Any
    result: OptimizerTrace = field(default_factory=OptimizerTrace)
    found: dict[int, torch.Tensor] = field(default_factory=dict)
    _unscaled: set[int] = field(default_factory=set)
    _state: dict[str, TensorProxy] = field(default_factory=dict)
    _scaled: bool = False

    def __post_init__(self) -> None:
        self.static = not isinstance(self.scaler, torch.amp.GradScaler)
        place = Place(self.scaler, "self", holder=vars(self.scaler))
        self.result.places.append(place)
        names = ("scale_factor",) if self.static else _FACTORS
        self.result.baked += [BakedValue(place, n, vars(self.scaler)[n]) for n in names]
        if not self.static:
            for key in ("_scale", "_growth_tracker"):
                self._input(place, key)

    def _input(self, place: Place, key: str) -> None:
        session: Tracing = self.session
        real = getattr(self.scaler, key)
        index = len(session.recorder.inputs)
        fake = session.recorder.add_input(real, "scaler_state", f"scaler.{key[1:]}")
        session.rewrites.register(real, functional(fake, real), index)
        self._state[key] = session.rewrites.proxies[id(real)]
        self.result.slots.append(StateSlot(place, key, (), session.recorder.inputs[index].value))

    # backward

    def seed(self, loss: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        """The gradient with which the backward pass of `loss` starts.

        Raises:
            GraphTraceError: gradients were read before.
        """
        if self.found:
            raise GraphTraceError(
                f"{self._here()}: backward() is called after gradients were read (.grad, or "
                "clip_grad_norm_) in a graph with a gradient scaler. They are divided by the scale "
                "when they are read: call every backward() first."
            )
        self._scaled = True
        with torch.no_grad():
            if gradient is None:
                gradient = torch.ones_like(loss)
            if self.static:
                return gradient * self.scaler.scale_factor
            return (gradient * self._state["_scale"].wrapper).to(loss.dtype)

    # optimizers

    def _here(self) -> str:
        return describe(self.session.locator.here())

    @contextlib.contextmanager
    def _recording(self, in_build: bool = False) -> Iterator[None]:
        session: Tracing = self.session
        if in_build:
            with torch.no_grad():
                yield
            return
        session.locator.optimizer = True
        try:
            with session.active(), torch.no_grad():
                yield
        finally:
            session.locator.optimizer = False

    def unscale(
        self, index: int, parameters: Sequence[torch.Tensor], in_build: bool = False
    ) -> None:
        """Divide the gradients of one optimizer by the scale, and record whether they are finite.

        Args:
            in_build: whether `build()` is running, and reads them.

        Raises:
            GraphTraceError: gradients were computed without loss.backward(), or a parameter is in half precision.
        """
        session: Tracing = self.session
        name = f"optimizer.{index}"
        if parameters and not self._scaled:
            raise GraphTraceError(
                "the graph has a gradient scaler, but gradients were made without loss.backward(); "
                "call backward() on the loss in build(), or set no scaler."
            )
        wrappers = [session.rewrites.wrapper_of(p) for p in parameters]
        scaled: list[Any] = [w.grad for w in wrappers]
        for real in parameters:
            if real.dtype in _HALVES:
                raise GraphTraceError(
                    f"{name}: the gradient of a {real.dtype} parameter cannot be unscaled; keep "
                    "parameters in float32 (config.enable_amp() casts them where it pays)."
                )
        with self._recording(in_build):
            bad = torch.zeros((), dtype=torch.bool)
            if self.static:
                inverse: Any = 1 / self.scaler.scale_factor
            else:
                for gradient in scaled:
                    bad = bad | ~torch.isfinite(gradient).all()
                inverse = self._state["_scale"].wrapper.double().reciprocal().float()
                # no part of an update can be computed before all gradients are known: both it and the old
                # values would have to be kept until then
                inverse = torch.where(bad, 0.0, inverse)
            self.found[index] = bad
            new = [gradient * inverse for gradient in scaled]
        for real, wrapper, gradient in zip(parameters, wrappers, new, strict=True):
            if id(real) not in self._unscaled:
                self._unscaled.add(id(real))
                wrapper.grad = functional(unwrap(gradient), gradient)

    def before(self) -> Before:
        """The state before an optimizer's step."""
        return Before(values_now(self.session), len(self.session.recorder.numbers))

    def skip(self, which: int, before: Before, step: OptimizerTrace) -> None:
        """Undo the step of an optimizer whose gradients are not all finite, by selecting the old values.

        Raises:
            GraphTraceError: the step assigns values that are neither tensors nor numbers.
        """
        if self.static:
            return
        if step.writes:
            key = step.writes[0].key
            raise GraphTraceError(_PLAIN.format(where=f"optimizer.{which}", name=key))
        session: Tracing = self.session
        recorder = session.recorder
        bad = recorder.value_of(unwrap(self.found[which]))
        after = values_now(session)
        proxies = {s.index: s for s in session.rewrites.proxies.values()}
        with self._recording():
            for index, new in after.items():
                old = before.values.get(index, recorder.inputs[index].value)
                if new is not old:
                    choose(session, proxies[index], bad, old, new)
            for number in recorder.numbers[before.numbers :]:
                if number.born:
                    raise GraphTraceError(
                        _PLAIN.format(where=f"optimizer.{which}", name=number.name)
                    )
                if number.final is not None:
                    number.final = recorder.record_number(
                        aten.where.self, (bad, number.value, number.final), number.value.dtype
                    )

    def update(self) -> None:
        """Record the scale and growth tracker after the step, as `aten._amp_update_scale_` computes them.

        Raises:
            GraphTraceError: there is no gradient whose finiteness could be checked.
        """
        if self.static or not self.found:
            return
        if not self._unscaled:
            raise GraphTraceError(
                f"{self.session.name}: the graph has a gradient scaler, and no parameter of its optimizers has a "
                "gradient. Give the optimizers the parameters that the loss depends on (a module that was exchanged "
                "has others), or set no scaler."
            )
        session: Tracing = self.session
        scale, tracker = (self._state[k].wrapper for k in ("_scale", "_growth_tracker"))
        options = vars(self.scaler)
        with self._recording():
            first, *others = self.found.values()
            bad = first
            for other in others:
                bad = bad | other
            shrunk = (scale.double() * options["_backoff_factor"]).float()
            grown = (scale.double() * options["_growth_factor"]).float()
            steps = tracker + 1
            full = steps == options["_growth_interval"]
            kept = torch.where(full & torch.isfinite(grown), grown, scale)
            new = {
                "_scale": torch.where(bad, shrunk, kept),
                "_growth_tracker": torch.where(bad | full, torch.zeros_like(tracker), steps),
            }
        for key, wrapper in new.items():
            session.rebound[self._state[key].index] = wrapper


def values_now(session: Tracing) -> dict[int, TraceValue]:
    """The current value of each input of a trace, by its index."""
    proxies = {s.index: s for s in session.rewrites.proxies.values()}
    found = {}
    with session.active():
        for index, proxy in proxies.items():
            wrapper = session.rebound.get(index, proxy.wrapper)
            found[index] = session.recorder.value_of(unwrap(wrapper))
    return found


def choose(
    session: Tracing, proxy: TensorProxy, condition: TraceValue, yes: TraceValue, no: TraceValue
) -> None:
    """Set the value of one input to `yes` where `condition`, otherwise `no`."""
    fake = session.recorder.fake_like(proxy.real)
    value = session.recorder.value_of(fake)
    loc = session.locator.here()
    session.recorder.ops.append(TraceOp(aten.where.self, (condition, yes, no), {}, [value], loc))
    wrapper = functional(fake, proxy.real)
    if proxy.index in session.rebound:
        session.rebound[proxy.index] = wrapper
        return
    old_grad: Any = proxy.wrapper.grad if proxy.wrapper.is_leaf else None
    if old_grad is not None:
        wrapper.grad = functional(unwrap(old_grad), old_grad)
    session.rewrites.register(proxy.real, wrapper, proxy.index)


def prepare(scaler: Any, parameters: Sequence[torch.Tensor]) -> bool:
    """Create a scaler's tensors. Returns False if the scaler is disabled."""
    if scaler is None:
        return False
    if not isinstance(scaler, torch.amp.GradScaler):
        return True
    if not scaler.is_enabled():
        return False
    if scaler._scale is None:
        device = parameters[0].device if parameters else torch.device("cpu")
        scaler._lazy_init_scale_growth_tracker(device)
    return True


def eager_steps(
    scaler: Any, optimizers: Sequence[torch.optim.Optimizer], unscaled: Sequence[int] = ()
) -> list[Any]:
    """Run the optimizers' steps on real, scaled gradients.

    Args:
        unscaled: the indices of the optimizers whose gradients are unscaled already.

    Returns:
        The steps that were skipped.
    """
    if scaler is None:
        for optimizer in optimizers:
            with torch.no_grad():
                clip_groups(optimizer.param_groups)
            with scaled_rates(optimizer, optimizer.param_groups), without_hooks([optimizer]):
                optimizer.step()
        return []
    if not isinstance(scaler, torch.amp.GradScaler):
        for parameter in {
            id(p): p
            for i, o in enumerate(optimizers)
            if i not in unscaled
            for g in o.param_groups
            for p in g["params"]
        }.values():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * (1 / scaler.scale_factor)
        return eager_steps(None, optimizers)
    skipped = []
    for i, optimizer in enumerate(optimizers):
        if all(p.grad is None for g in optimizer.param_groups for p in g["params"]):
            continue
        if i in unscaled:
            scaler._check_inf_per_device(optimizer)
            scaler._per_optimizer_states[id(optimizer)]["stage"] = OptState.UNSCALED
        else:
            scaler.unscale_(optimizer)
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if sum(v.item() for v in found.values()):
            skipped.append(optimizer)
        clip_groups(optimizer.param_groups)
        with scaled_rates(optimizer, optimizer.param_groups), without_hooks([optimizer]):
            scaler.step(optimizer)
    scaler.update()
    return skipped

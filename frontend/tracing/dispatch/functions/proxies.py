"""The traced tensors that represent real ones, and queries about them for handlers of functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from gflow.errors import GraphTraceError
from gflow.tracing.reads.of_modules import OF_TENSORS

from ...context.watched_calls import Met
from ...data.global_tensors import OWN
from ...data.values import TraceValue
from ..recorder import Recorder, describe, untraced

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class TensorProxy:
    """The traced tensor for a real one, which is input `index` of the trace. begin: its initial value, if that is not
    the input itself."""

    real: Tensor
    wrapper: Tensor
    index: int
    begin: TraceValue | None = None


class Fact(NamedTuple):
    """A property of a real tensor that was read, and its value."""

    real: Tensor
    question: Callable[[Tensor], Any]
    answer: Any
    name: str


class TensorProxies:
    """The real tensors of a trace with their proxies, and callbacks for backward and optimizer steps."""

    def __init__(
        self, recorder: Recorder, has_optimizer: bool, trained: frozenset[int] = frozenset()
    ) -> None:
        """trained: the ids of the parameters of the graph's optimizers."""
        self.recorder = recorder
        self.has_optimizer, self.trained = has_optimizer, trained
        self.in_optimizer = False
        self.seed: Callable[[Tensor, Tensor | None], Tensor] | None = None
        #: is told of Python code that asks for what a trace has not
        self.asked: Met | None = None
        self.read_gradient: Callable[[Tensor], None] | None = None
        self.view_of: Callable[[Tensor, int], Tensor | None] | None = None
        #: within, ops are recorded, whether or not `build()` runs
        self.active: Callable[[], AbstractContextManager[None]] = nullcontext
        self.bases: dict[int, tuple[Tensor, Tensor]] = {}  # id of a view → the view, its base
        self.proxies: dict[int, TensorProxy] = {}
        self.reals: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # id of a proxy → the proxy, the real tensor
        self.given: list[TensorProxy] = []  # proxies of arguments
        self.restrided: dict[
            int, tuple[Tensor, str]
        ] = {}  # id of a tensor whose strides changed in place → the tensor, the line
        self.stepped: dict[int, Tensor] = {}  # id of a copy in an optimizer's step → the parameter
        self.met: set[int] = set()  # ids of real tensors that were used
        #: id of a real tensor whose gradient was read before it existed → the tensor
        self.ungraded: dict[int, Tensor] = {}
        #: arrays of NumPy, tensors that were made over their memory, the values of these then, and the lines
        self.arrays: list[tuple[weakref.ref[Any], Tensor, TraceValue, Any]] = []
        #: tensors, rows of them selected by a value, the values of both then, and the lines
        self.selected: list[tuple[Tensor, Tensor, tuple[TraceValue, TraceValue], Any]] = []
        #: handles of hooks of gradients of tensors from outside, the methods that made them, and the lines
        self.hooked: list[tuple[Any, str, Any]] = []
        #: id of a real tensor whose `requires_grad` was set → the tensor, its proxy, the line
        self.flagged: dict[int, tuple[Tensor, Tensor, Any]] = {}
        #: properties of tensors from outside that were read
        self.facts: list[Fact] = []
        self.constants: list[Tensor] = []  # tensors from outside
        self.bare: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # id of a fake tensor → the tensor, its proxy
        recorder.held = self._held

    def register(self, real: Tensor, wrapper: Tensor, index: int) -> TensorProxy:
        """Use `wrapper`, made for input `index`, wherever `real` occurs."""
        known = self.proxies[id(real)] = self.proxy(real, wrapper, index)
        self.reals[id(known.wrapper)] = (known.wrapper, real)
        return known

    def proxy(self, real: Tensor, wrapper: Tensor, index: int) -> TensorProxy:
        """`wrapper` as the proxy of a real tensor; a conjugate view if the real tensor is one."""
        with torch._C.DisableTorchFunction():
            if not real.is_conj() or wrapper.is_conj():
                return TensorProxy(real, wrapper, index)
        with self.active(), torch.no_grad():
            conjugate = torch.conj_physical(wrapper.detach()).conj()
            begin = self.recorder.value_of(unwrap(conjugate))
        with untraced():
            if wrapper.requires_grad:
                conjugate.requires_grad_(True)
            if isinstance(real, torch.nn.Parameter):
                conjugate._is_param = True  # type: ignore[attr-defined]
        vars(conjugate).update(vars(wrapper))
        return TensorProxy(real, conjugate, index, begin)

    def wrapper_of(self, real: Tensor) -> Tensor:
        """The traced proxy of a real tensor."""
        self.met.add(id(real))
        known = self.proxies.get(id(real))
        if known is not None:
            return known.wrapper
        if isinstance(real, FakeTensor):
            return self._unwrapped(real)
        index = len(self.recorder.inputs)
        fake = self.recorder.constant(real)
        wrapper = self.view_of(real, index) if self.view_of is not None else None
        if wrapper is None:
            wrapper = functional(fake, real)
            self.constants.append(real)
        return self.register(real, wrapper, index).wrapper

    def _held(self, real: Tensor) -> FakeTensor | None:
        """The current value of the proxy of a real tensor, for tensors that reach the recorder directly (those that a
        hook of the backward reads)."""
        known = self.proxies.get(id(real))
        if known is None:
            return None
        with self.recorder.fake_mode, self.recorder:
            return unwrap(known.wrapper)  # type: ignore[return-value]

    def _unwrapped(self, fake: FakeTensor) -> Tensor:
        """The proxy of a result that depends on no functional tensor: of an op on numbers alone."""
        known = self.bare.get(id(fake))
        if known is None:
            self.recorder.value_of(fake)  # checks that it belongs to this trace
            known = self.bare[id(fake)] = (fake, functional(fake, fake))
        return known[1]

    def lift(self, arg: Any) -> Any:
        """`arg` with real tensors replaced by their proxies."""
        if isinstance(arg, Tensor):
            if torch._is_functional_tensor(arg):
                return arg
            return self._freed(arg) if is_functorch_wrapped_tensor(arg) else self.wrapper_of(arg)
        kind = type(arg)
        if kind is tuple or kind is list:
            for a in arg:
                if isinstance(a, (Tensor, list, tuple, dict)):
                    return kind([self.lift(a) for a in arg])
            return arg
        if kind is dict:
            return {k: self.lift(v) for k, v in arg.items()}
        return arg

    def _freed(self, tensor: Tensor) -> Tensor:
        """The traced tensor that a transform of `torch.func` has left in its wrapper.

        Raises:
            GraphTraceError: the transform's tensor is one of a batch, or of a derivative, still.
        """
        found = torch._C._functorch.unwrap_if_dead(tensor)
        if is_functorch_wrapped_tensor(found):
            raise GraphTraceError(
                f"{describe(self.recorder.locator.here())}: a tensor of a torch.func transform is used outside of it. "
                "Return it from the function that is transformed."
            )
        return self.lift(found)  # type: ignore[no-any-return]

    def argument_of(self, tensor: Tensor) -> TensorProxy | None:
        """The tensor from outside with which a traced tensor shares its storage; None if there is none."""
        if tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()._cdata
        outside = (*self.given, *self.proxies.values())
        return next((s for s in outside if s.wrapper.untyped_storage()._cdata == storage), None)

    def real_of(self, tensor: Tensor) -> Tensor | None:
        """The tensor from outside that a traced one represents; None if it represents none."""
        known = self.reals.get(id(tensor))
        if known is not None:
            return known[1]
        return next((s.real for s in self.given if s.wrapper is tensor), None)

    def knows(self, tensor: Tensor) -> bool:
        """Whether the values of a traced tensor follow from integers and masks from outside (`known_values`)."""
        recorder = self.recorder
        if recorder.known is None:
            return False
        with recorder.fake_mode, recorder:
            return recorder.known.of(unwrap(tensor)) is not None

    def has_moved(self, tensor: Tensor) -> bool:
        """Whether a traced tensor, or its base, has other strides than its value in the program, after an update of a
        tensor with gaps."""
        for held in (tensor, tensor._base):
            if held is None or held.numel() <= 1:
                continue
            with self.recorder.fake_mode, self.recorder:
                value = self.recorder.value_of(unwrap(held))
            sizes = self.recorder.sizes
            strides = tuple(held.stride())
            if sizes is not None:
                strides = tuple(map(sizes.concrete, strides))
            if strides != value.strides:
                return True
        return False

    def concrete(self, size: Any) -> Any:
        """A size or stride as an integer; for one that depends on values, its stand-in."""
        sizes = self.recorder.sizes
        return size if sizes is None else sizes.plain(size)


def functional(fake: Tensor, like: Tensor) -> Tensor:
    """A functional tensor around `fake` with the autograd leaf status of `like`."""
    with untraced():
        wrapper = torch._to_functional_tensor(fake)
        if like.requires_grad:
            wrapper.requires_grad_(True)
        if isinstance(like, torch.nn.Parameter):
            wrapper._is_param = True
    if not isinstance(like, FakeTensor):
        vars(wrapper).update(own_attributes(like))
    return wrapper


def own_attributes(tensor: Tensor) -> dict[str, Any]:
    """Attributes of a tensor that are not PyTorch's, such as `weight.is_embedding`."""
    own = vars(tensor)
    return {name: own[name] for name in own.keys() - OF_TENSORS - OWN} if own else {}


def unwrap(wrapper: Tensor) -> Tensor:
    """The current fake tensor of a functional tensor."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


#: runs instead of a function. Parameters: the proxies of the trace, the function, its positional and keyword arguments
Handler = Callable[[TensorProxies, Any, "tuple[Any, ...]", "dict[str, Any]"], Any]


def plain(function: Callable[..., Any]) -> Handler:
    """A handler that calls `function` with only the arguments."""

    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return function(*args, **kwargs)

    return handler

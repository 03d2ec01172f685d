"""What happens above autograd while tracing: a function mode that

- turns real tensors captured from outside into traced constants,
- replaces functions that mutate without saying so (batch norm's running statistics) by
  their functional kin,
- turns requests for a tensor's value into clear errors, or traced numbers in an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from gflow.errors import GraphTraceError
from gflow.tracing.reads.reads import OF_TENSORS

from ..data.global_tensors import OWN
from ..data.values import TraceValue
from ..program import collectives, resharding
from . import overlaps
from .assertions import asserted, fail_if
from .in_place import write_problem
from .layouts import RESHAPING, layouts, restore
from .numbers import number_of, wrap
from .recorder import Recorder, describe, item_error, untraced
from .recurrent import recurrent

aten = torch.ops.aten
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class StandIn:
    """The traced tensor used for a real one, which is input `index` of the trace. begin: what it holds at first, where
    that is not the input itself."""

    real: Tensor
    wrapper: Tensor
    index: int
    begin: TraceValue | None = None


class Rewrites(TorchFunctionMode):
    """Active around `build()` and `optimizer.step()`."""

    def __init__(self, recorder: Recorder, has_optimizer: bool) -> None:
        super().__init__()
        self.recorder = recorder
        self.has_optimizer = has_optimizer
        self.in_optimizer = False
        self.seed: Callable[[Tensor, Tensor | None], Tensor] | None = None
        self.read_gradient: Callable[[Tensor], None] | None = None
        self.view_of: Callable[[Tensor, int], Tensor | None] | None = None
        #: records what is done in it, whether or not `build()` runs
        self.active: Callable[[], AbstractContextManager[None]] = nullcontext
        self.bases: dict[int, tuple[Tensor, Tensor]] = {}  # views by their ids, with what they view
        self.stand_ins: dict[int, StandIn] = {}
        self.reals: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # stand-ins by their ids, with real tensors
        self.given: list[StandIn] = []  # of arguments
        self.restrided: dict[
            int, tuple[Tensor, str]
        ] = {}  # what changed strides in place, with where
        self.stepped: dict[
            int, Tensor
        ] = {}  # parameters by the ids of what stands for them in a step
        self.met: set[int] = set()  # ids of the real tensors that were used
        #: real tensors by their ids, whose gradient was asked for before there was any
        self.ungraded: dict[int, Tensor] = {}
        self.bare: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # fake tensors by their ids, with stand-ins
        recorder.held = self._held

    def register(self, real: Tensor, wrapper: Tensor, index: int) -> StandIn:
        """Use `wrapper`, made for input `index`, wherever `real` is met."""
        known = self.stand_ins[id(real)] = self.stand_in(real, wrapper, index)
        self.reals[id(known.wrapper)] = (known.wrapper, real)
        return known

    def stand_in(self, real: Tensor, wrapper: Tensor, index: int) -> StandIn:
        """`wrapper` for a real tensor; one that says that it is conjugate, where the real one does."""
        with torch._C.DisableTorchFunction():
            if not real.is_conj() or wrapper.is_conj():
                return StandIn(real, wrapper, index)
        with self.active(), torch.no_grad():
            conjugate = torch.conj_physical(wrapper.detach()).conj()
            begin = self.recorder.value_of(unwrap(conjugate))
        with untraced():
            if wrapper.requires_grad:
                conjugate.requires_grad_(True)
            if isinstance(real, torch.nn.Parameter):
                conjugate._is_param = True  # type: ignore[attr-defined]
        vars(conjugate).update(vars(wrapper))
        return StandIn(real, conjugate, index, begin)

    def wrapper_of(self, real: Tensor) -> Tensor:
        """The traced stand-in of a real tensor."""
        self.met.add(id(real))
        known = self.stand_ins.get(id(real))
        if known is not None:
            return known.wrapper
        if isinstance(real, FakeTensor):
            return self._unwrapped(real)
        index = len(self.recorder.inputs)
        fake = self.recorder.constant(real)
        wrapper = self.view_of(real, index) if self.view_of is not None else None
        if wrapper is None:
            wrapper = functional(fake, real)
        return self.register(real, wrapper, index).wrapper

    def _held(self, real: Tensor) -> FakeTensor | None:
        """What the stand-in of a real tensor holds: for tensors that come below this mode, as those that
        a hook of the backward reads."""
        known = self.stand_ins.get(id(real))
        if known is None:
            return None
        with self.recorder.fake_mode, self.recorder:
            return unwrap(known.wrapper)  # type: ignore[return-value]

    def _unwrapped(self, fake: FakeTensor) -> Tensor:
        """The stand-in of a result that no functional tensor went into: of an op of numbers alone."""
        known = self.bare.get(id(fake))
        if known is None:
            self.recorder.value_of(fake)  # it is of this trace
            known = self.bare[id(fake)] = (fake, functional(fake, fake))
        return known[1]

    def lift(self, arg: Any) -> Any:
        """`arg` with real tensors replaced by their stand-ins."""
        if isinstance(arg, Tensor):
            return arg if torch._is_functional_tensor(arg) else self.wrapper_of(arg)
        kind = type(arg)
        if kind is tuple or kind is list:
            for a in arg:
                if isinstance(a, (Tensor, list, tuple, dict)):
                    return kind([self.lift(a) for a in arg])
            return arg
        if kind is dict:
            return {k: self.lift(v) for k, v in arg.items()}
        return arg

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if peek_interpreter_stack() is not None:
            raise GraphTraceError(
                f"{describe(self.recorder.locator.here())}: build() uses a torch.func transform "
                "(vmap, grad, jvp, ...), which a graph cannot record. Write the batch dimension "
                "out, and use torch.autograd.grad(..., create_graph=True) for derivatives."
            )
        args = tuple([self.lift(a) for a in args])
        kwargs = {k: self.lift(v) for k, v in kwargs.items()} if kwargs else {}
        name = getattr(func, "__name__", "")
        before = [] if name in RESHAPING or self.in_optimizer else layouts(args, kwargs)
        handler = _HANDLERS.get(func)
        run = func if handler is None else partial(_handled, handler, self, func)
        if handler is None or handler in _IN_PLACE:
            if overlaps.writes_first(func, kwargs):
                self._check_target(func, args)
            problem = write_problem(func, args, kwargs, self.concrete)
            if problem is not None:
                raise GraphTraceError(f"{describe(self.recorder.locator.here())}: {problem}")
        try:
            result = overlaps.call(func, args, kwargs, self.concrete, run, self.has_moved)
        except overlaps.Unwritable as error:
            raise GraphTraceError(f"{describe(self.recorder.locator.here())}: {error}") from None
        if before:
            restore(self, before)
        if self.in_optimizer:  # code of a step sees parameters, and may compare them
            return self.stepped.get(id(result), result)
        # What was updated in place is the real tensor again: `self.count += 1` assigns it to the module.
        known = self.reals.get(id(result))
        return result if known is None else known[1]

    def _check_target(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """
        Raises:
            GraphTraceError: an op changes a tensor in place of which elements are one in memory, and which is no
                view that `overlaps` knows.
        """
        target = args[0] if args else None
        if not isinstance(target, Tensor) or overlaps.may_overlap(target):
            return
        outside = (*self.stand_ins.values(), *self.given)  # `check_update` names it
        if overlaps.shares(target, self.concrete) and not any(s.wrapper is target for s in outside):
            where = describe(self.recorder.locator.here())
            raise GraphTraceError(f"{where}: {overlaps.shared_problem(func, target)}")

    def argument_of(self, tensor: Tensor) -> StandIn | None:
        """What a traced tensor lies in the memory of, if that comes from outside."""
        if tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()._cdata
        outside = (*self.given, *self.stand_ins.values())
        return next((s for s in outside if s.wrapper.untyped_storage()._cdata == storage), None)

    def has_moved(self, tensor: Tensor) -> bool:
        """Whether a traced tensor, or what it views, has other strides than its value in the program: after an
        update of one with gaps."""
        for held in (tensor, tensor._base):
            if held is None or held.numel() <= 1:
                continue
            with self.recorder.fake_mode, self.recorder:
                value = self.recorder.value_of(unwrap(held))
            if tuple(map(self.concrete, held.stride())) != value.strides:
                return True
        return False

    def concrete(self, size: Any) -> Any:
        """A size or stride as an integer."""
        sizes = self.recorder.sizes
        return size if sizes is None else sizes.concrete(size)


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
    """What code other than PyTorch's keeps at a tensor, as `weight.is_embedding`."""
    own = vars(tensor)
    return {name: own[name] for name in own.keys() - OF_TENSORS - OWN} if own else {}


def unwrap(wrapper: Tensor) -> Tensor:
    """The fake tensor that a functional tensor holds now."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


# handlers


def _handled(handler: Any, mode: Rewrites, func: Any, /, *args: Any, **kwargs: Any) -> Any:
    return handler(mode, func, args, kwargs)


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if input.numel() == 0:  # as PyTorch: statistics stay
        out = input.clone() if weight is None else input * weight[0]
        return out if bias is None else out + bias[0]
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)[
            0
        ]
    if training:
        return aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    return aten._native_batch_norm_legit_no_training.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )[0]


def _native_batch_norm(
    mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Running statistics are updated, which the op's schema does not say."""
    names = (
        "input",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "training",
        "momentum",
        "eps",
    )
    given = dict(zip(names, args)) | kwargs
    if not given["training"] or given["running_mean"] is None or given["running_var"] is None:
        return func(*args, **kwargs)
    return aten._native_batch_norm_legit.default(*(given[n] for n in names))


def _f_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        F._verify_batch_size(input.size())  # type: ignore[attr-defined]
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def _instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    batch, channels = input.shape[:2]

    def spread(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.repeat(batch)

    mean, var = spread(running_mean), spread(running_var)
    flat = input.contiguous().view(1, batch * channels, *input.shape[2:])
    out = _batch_norm(flat, spread(weight), spread(bias), mean, var, use_input_stats, momentum, eps)
    with torch.no_grad():
        for running, spread_stats in ((running_mean, mean), (running_var, var)):
            if use_input_stats and running is not None and spread_stats is not None:
                running.copy_(spread_stats.view(batch, channels).mean(0))
    return out.view(input.shape)


def _f_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if use_input_stats:
        F._verify_spatial_size(input.size())  # type: ignore[attr-defined]
    return _instance_norm(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0 or input.numel() == 0:
        return input
    out = torch.native_dropout(input, p, True)[0] if p < 1.0 else input * 0.0
    return input.copy_(out) if inplace else out


def _call(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return handler


def _max_pool1d(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch's kernel without gradients takes fixed sizes alone; the op for images takes any."""
    given = dict(kwargs)
    if mode.recorder.sizes is None or given.pop("return_indices", False) or len(args) > 6:
        return func(*args, **kwargs)
    return _as_images(*args, **given)


def _as_images(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:  # fmt: skip
    def pair(first: int, value: Any) -> list[Any]:
        return [first, *(value if isinstance(value, (list, tuple)) else (value,))]

    sizes = pair(1, kernel_size)
    step = sizes if stride is None or stride == () or stride == [] else pair(1, stride)
    image = input.unsqueeze(-2)
    return torch.max_pool2d(
        image, sizes, step, pair(0, padding), pair(1, dilation), ceil_mode
    ).squeeze(-2)


def _torch_dropout(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    return _dropout(names["input"], names["p"], names["train"])


def _value(what: str) -> Callable[..., Any]:
    def handler(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        fake = unwrap(tensor)
        if getattr(fake, "constant", None) is not None:
            return func(*args, **kwargs)
        raise item_error(mode.recorder.locator.here(), what)

    return handler


def _item(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if mode.in_optimizer and tensor.numel() == 1 and not tensor.is_complex():
        return wrap(mode.recorder.number_from(unwrap(tensor)))
    return func(*args, **kwargs)


def _bool(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if mode.in_optimizer or getattr(unwrap(args[0]), "constant", None) is not None:
        return bool(func(*args, **kwargs))
    found = asserted(args[0])
    return bool(func(*args, **kwargs)) if found is None else found


def _backward(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    loss = args[0]
    gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
    where = describe(mode.recorder.locator.here())
    if not mode.has_optimizer:
        raise GraphTraceError(
            f"{where}: build() calls backward() but the graph has no optimizer. Call "
            "self.add_optimizer(optimizer) in __init__, or leave backward() out for inference."
        )
    if gradient is None and loss.numel() != 1:
        raise GraphTraceError(
            f"{where}: backward() is called on a tensor of shape {list(loss.shape)}; it needs a "
            "scalar. Reduce the loss with .mean() or .sum(), or pass gradient=."
        )
    if not loss.requires_grad:
        raise GraphTraceError(
            f"{where}: backward() is called on a tensor that does not depend on any parameter "
            "with requires_grad=True. Check for .detach(), torch.no_grad() or frozen parameters."
        )
    if mode.seed is not None:
        names = ("gradient", "retain_graph", "create_graph", "inputs")
        kwargs = dict(zip(names, args[1:], strict=False)) | kwargs
        return func(loss, **(kwargs | {"gradient": mode.seed(loss, gradient)}))
    return func(*args, **kwargs)


def _gradient_from_outside(mode: Rewrites, tensor: Tensor) -> None:
    """Before the first backward(), eager gives the gradient that an earlier one has left; a program has none."""
    if any(op.loc.phase == "backward" for op in mode.recorder.ops):
        return
    if not any(s.wrapper is tensor for s in mode.given):  # other calls have other arguments
        known = mode.reals.get(id(tensor))
        if known is None:
            return
        if known[1].grad is None:
            mode.ungraded[id(known[1])] = known[1]
            return
    raise GraphTraceError(
        f"{describe(mode.recorder.locator.here())}: build() reads .grad before its first backward(). A gradient from "
        "outside of the program is no part of it: pass it as an argument of its own, or set it to None before the call."
    )


def _gradient(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gradient = func(*args)
    if gradient is None and not mode.in_optimizer:
        _gradient_from_outside(mode, args[0])
    if mode.read_gradient is None or gradient is None or mode.in_optimizer:
        return gradient
    mode.read_gradient(args[0])
    return func(*args)


def _tensor_literal(
    mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.tensor(x)` and `torch.as_tensor(x)` with traced numbers inside."""
    data: Any = args[0] if args else kwargs.get("data")
    if number_of(data) is not None:
        words = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}
        return torch.scalar_tensor(data, **words)
    if isinstance(data, (list, tuple)) and any(
        number_of(x) is not None or isinstance(x, Tensor) for x in data
    ):
        words = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}
        return torch.stack(
            [
                torch.as_tensor(x, **words)
                if isinstance(x, Tensor)
                else torch.scalar_tensor(x, **words)
                for x in data
            ]
        )
    return func(*args, **kwargs)


def _one_hot(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """PyTorch's own looks at the values: to check them, or to find the number of classes."""
    words = dict(zip(("tensor", "num_classes"), args, strict=False)) | kwargs
    tensor, num_classes = words["tensor"], words.get("num_classes", -1)
    if num_classes < 0:
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: one_hot() without num_classes takes the number of classes from "
            "the values of a tensor, which do not exist while a graph is traced. Pass num_classes."
        )
    if tensor.dtype != torch.int64:
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: one_hot() takes classes of dtype int64, got "
            f"{str(tensor.dtype).removeprefix('torch.')}; convert them with .long()"
        )
    fail_if(tensor < 0, "RuntimeError", "Class values must be non-negative.")
    fail_if(
        tensor >= num_classes, "RuntimeError",
        f"Class values must be smaller than num_classes, which is {num_classes}.",
    )  # fmt: skip
    classes = torch.arange(num_classes, device=tensor.device, dtype=tensor.dtype)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def _tensor_split(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    words = dict(zip(("input", "indices_or_sections"), args, strict=False)) | kwargs
    places = words.get("indices_or_sections", words.get("tensor_indices_or_sections"))
    if isinstance(places, Tensor):
        raise item_error(mode.recorder.locator.here(), "the values of a tensor, to split by them")
    return func(*args, **kwargs)


def _unsafe_parts(
    mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...]:
    return overlaps.unsafe_parts(func.__name__, *args, **kwargs)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """PyTorch's own; it looks at the values of `var`."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    if isinstance(var, Tensor):
        fail_if(var < 0, "ValueError", "var has negative entry/entries")
    elif var < 0:
        raise ValueError("var has negative entry/entries")
    var = var.clone() if isinstance(var, Tensor) else torch.full_like(input, var)
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else getattr(loss, reduction)()


def _clamp_(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    # In place and with traced numbers, PyTorch takes its slow Python reference apart.
    if not any(number_of(a) is not None for a in (*args[1:], *kwargs.values())):
        return func(*args, **kwargs)
    tensor = args[0]
    return tensor.copy_(torch.clamp(*args, **kwargs))


def _polygamma_(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    # PyTorch's functionalization does not know the method.
    order = args[1] if len(args) > 1 else kwargs["n"]
    return args[0].copy_(torch.polygamma(order, args[0]))


#: of those, methods that write like others do
_IN_PLACE = (_clamp_, _polygamma_)


def _embedding(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Gradients are dense; see `sparse.py` for optimizers that expect them sparse."""
    places = {F.embedding: 6, torch.embedding: 4, F.embedding_bag: 7, torch.embedding_bag: 5}
    at = places[func]
    if len(args) > at:
        args = (*args[:at], False, *args[at + 1 :])
    elif "sparse" in kwargs:
        kwargs = kwargs | {"sparse": False}
    return func(*args, **kwargs)


def _of_arguments(what: str) -> Callable[..., Any]:
    def handler(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if mode.argument_of(args[0]) is None:
            return func(*args, **kwargs)
        raise item_error(mode.recorder.locator.here(), what)

    return handler


def _strided(place: int) -> Callable[..., Any]:
    """`as_strided` and its kin, whose offset counts from where the memory begins that a tensor lies in: unknown for
    one from outside. place: of the offset among the arguments."""

    def handler(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = describe(mode.recorder.locator.here())
        if args and mode.has_moved(args[0]):
            raise GraphTraceError(
                f"{where}: as_strided on a tensor with gaps, after an update of it in place, reads memory that a graph "
                "does not keep in that form. Call it before the update, or use slicing, expand or permute."
            )
        given = kwargs.get("storage_offset") is not None or any(
            a is not None for a in args[place : place + 1]
        )
        known = mode.argument_of(args[0]) if given and args else None
        if known is not None:
            entry = mode.recorder.inputs[known.index]
            if known.real.storage_offset():
                raise GraphTraceError(
                    f"{where}: {func.__name__}() with storage_offset counts from where the memory begins that "
                    f"{entry.role} {entry.name!r} lies in, and a graph knows nothing of what lies before the tensor. "
                    "Leave storage_offset out, which starts at the tensor, or call .clone() first."
                )
            entry.from_start = entry.role == "input"
        return func(*args, **kwargs)

    return handler


def _restrided(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Methods that change strides in place: where, is kept for the check at the end of `build()`."""
    result = func(*args, **kwargs)
    mode.restrided.setdefault(id(args[0]), (args[0], describe(mode.recorder.locator.here())))
    return result


def _as_strided_(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return _restrided(mode, func, args, kwargs)

    run.__name__ = func.__name__
    return _strided(3)(mode, run, args, kwargs)


def _other_memory(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.data = y`: a program can write into an argument's memory, and not give it another one."""
    if any(s.wrapper is args[0] for s in mode.given):
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: build() gives an argument other memory (.data = ...), so that "
            "other views of its old memory keep their values; a program can only write into it. Write x.copy_(y), or "
            "return the new tensor."
        )
    return func(*args, **kwargs)


def _repr(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensor = args[0]
    return f"<traced tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}>"


def _format(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if args[1]:
        raise item_error(mode.recorder.locator.here(), "a tensor's value, to format it")
    return _repr(mode, func, args, kwargs)


def _row_major_matrix(
    mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """PyTorch factors a row-major matrix transposed, another as it is, and its backward goes by the same
    question. Operands are row-major in a program, so the trace's are too."""
    if args:
        return func(args[0].contiguous(), *args[1:], **kwargs)
    name = "A" if "A" in kwargs else "input"
    return func(**{**kwargs, name: kwargs[name].contiguous()})


def _attention(mode: Rewrites, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch takes attention apart where the last dimension of an operand has gaps or stands for one element; under
    autocast it converts such a one to a dense tensor of halves before it looks. A graph is traced in the program's own
    types, and its scores as halves would leave their range: one whose elements share memory is copied."""

    def dense(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or value.stride(-1) == 1:
            return value
        return value.contiguous() if overlaps.shares(value, mode.concrete) else value

    names = ("query", "key", "value")
    given = {k: dense(v) if k in names else v for k, v in kwargs.items()}
    return func(*map(dense, args[:3]), *args[3:], **given)


#: functions that PyTorch makes of `_linalg_det`, `_linalg_slogdet` and `_linalg_solve_ex`
_FACTORING = (
    torch.det, torch.linalg.det, Tensor.det, torch.logdet, Tensor.logdet, torch.slogdet, Tensor.slogdet,
    torch.linalg.slogdet, torch.linalg.solve, torch.linalg.solve_ex, torch.linalg.tensorsolve,
)  # fmt: skip

_UNSAFE = (
    torch.unsafe_chunk, Tensor.unsafe_chunk, aten.unsafe_chunk, aten.unsafe_chunk.default,
    torch.unsafe_split, Tensor.unsafe_split, aten.unsafe_split, aten.unsafe_split.Tensor,
    torch.unsafe_split_with_sizes, Tensor.unsafe_split_with_sizes, aten.unsafe_split_with_sizes,
    aten.unsafe_split_with_sizes.default,
)  # fmt: skip

_HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_FACTORING, _row_major_matrix),
    F.scaled_dot_product_attention: _attention,
    torch.batch_norm: _call(_batch_norm),
    F.batch_norm: _call(_f_batch_norm),
    torch.native_batch_norm: _native_batch_norm,
    aten.native_batch_norm: _native_batch_norm,
    aten.native_batch_norm.default: _native_batch_norm,
    torch.instance_norm: _call(_instance_norm),
    F.instance_norm: _call(_f_instance_norm),
    F.dropout: _call(_dropout),
    F.embedding: _embedding,
    F.embedding_bag: _embedding,
    torch.embedding: _embedding,
    torch.embedding_bag: _embedding,
    F.one_hot: _one_hot,
    torch.tensor_split: _tensor_split,
    Tensor.tensor_split: _tensor_split,
    **dict.fromkeys(_UNSAFE, _unsafe_parts),
    F.gaussian_nll_loss: _call(_gaussian_nll_loss),
    torch.dropout: _torch_dropout,
    torch.max_pool1d: _max_pool1d,
    F.max_pool1d: _max_pool1d,
    torch.lstm: recurrent,
    torch.gru: recurrent,
    torch.rnn_tanh: recurrent,
    torch.rnn_relu: recurrent,
    Tensor.backward: _backward,
    Tensor.grad.__get__: _gradient,  # type: ignore[union-attr]
    Tensor.__bool__: _bool,
    Tensor.item: _item,
    Tensor.tolist: _value("a tensor's values (.tolist())"),
    Tensor.numpy: _value("a tensor's memory (.numpy())"),
    Tensor.__array__: _value("a tensor's memory (conversion to numpy)"),
    Tensor.data_ptr: _value("a tensor's memory (.data_ptr())"),
    Tensor.__deepcopy__: _value("a copy of a tensor with its values (copy.deepcopy)"),
    Tensor.share_memory_: _value("a tensor's memory (.share_memory_())"),
    Tensor.__repr__: _repr,
    Tensor.__format__: _format,
    Tensor.as_strided_: _as_strided_,
    **dict.fromkeys(
        (torch.as_strided, Tensor.as_strided, torch.as_strided_copy),
        _strided(3),
    ),
    **dict.fromkeys((torch.as_strided_scatter, Tensor.as_strided_scatter), _strided(4)),
    Tensor.storage_offset: _of_arguments("where a tensor lies in memory (.storage_offset())"),
    Tensor.untyped_storage: _of_arguments("the memory of a tensor (.untyped_storage())"),
    Tensor.storage: _of_arguments("the memory of a tensor (.storage())"),
    Tensor._typed_storage: _of_arguments("the memory of a tensor (.storage())"),
    Tensor._version.__get__: _of_arguments("how often a tensor was updated (._version)"),  # type: ignore[attr-defined]
    Tensor.is_set_to: _value("whether tensors share memory (.is_set_to())"),
    **dict.fromkeys(
        (
            Tensor.transpose_,
            Tensor.t_,
            Tensor.swapaxes_,
            Tensor.swapdims_,
            Tensor.squeeze_,
            Tensor.unsqueeze_,
        ),
        _restrided,
    ),
    Tensor.data.__set__: _other_memory,  # type: ignore[attr-defined]
    Tensor.clamp_: _clamp_,
    torch.clamp_: _clamp_,
    Tensor.polygamma_: _polygamma_,
    torch.tensor: _tensor_literal,
    torch.as_tensor: _tensor_literal,
    resharding.reshard: resharding.handler,
    **collectives.in_place(),
}

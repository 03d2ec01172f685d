"""`backward()`, `.grad`, and what else autograd keeps on a tensor: hooks, `requires_grad`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from gflow.errors import GraphTraceError

from ..recorder import describe
from .proxies import Handler, TensorProxies

if TYPE_CHECKING:
    from ..symbols.unknown_sizes import UnknownSizes

Tensor = torch.Tensor
#: up to how many frames are between a call of `Tensor.grad` and its handler
_FRAMES = 8


def _backward(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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


def _gradient_from_outside(mode: TensorProxies, tensor: Tensor) -> None:
    """Refuse a gradient that exists before the call: eager would return it before the first backward(), a program has
    none.

    Raises:
        GraphTraceError: the tensor has such a gradient.
    """
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
        f"{describe(mode.recorder.locator.here())}: build() reads .grad before its first backward(). "
        "The program cannot read a gradient from before the call: pass it as an argument, or set "
        ".grad to None before the call."
    )


def _is_converted() -> bool:
    """Whether a gradient is read by `module.to()` and the like, to convert it along with a parameter that has the dtype
    already. Nothing changes then."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code is torch.nn.Module._apply.__code__:
            names = frame.f_locals
            return names.get("param_applied") is names.get("param")
        frame = frame.f_back
    return False


def _gradient(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gradient = func(*args)
    if gradient is None and not mode.in_optimizer and not _is_converted():
        _gradient_from_outside(mode, args[0])
    if mode.read_gradient is None or gradient is None or mode.in_optimizer:
        return gradient
    mode.read_gradient(args[0])
    return func(*args)


def _set_gradient(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.grad = y` and `del x.grad`. An optimizer of the graph reads what its parameters get; no other tensor from
    outside can keep a gradient.

    Raises:
        GraphTraceError: it is such a tensor, and its gradient would change.
    """
    tensor, new = args[0], args[1] if len(args) > 1 else None
    known = mode.reals.get(id(tensor))
    real = mode.real_of(tensor)
    ours = mode.in_optimizer or real is None or (known is not None and id(real) in mode.trained)
    if ours:
        return func(*args)
    if new is None and known is not None and real.grad is None:  # type: ignore[union-attr]
        mode.ungraded[id(real)] = real  # type: ignore[assignment]
        return func(*args)
    error = GraphTraceError(
        f"{describe(mode.recorder.locator.here())}: build() sets the .grad of a tensor from outside, which is no "
        "parameter of the graph's optimizers. Gradients in a program live for one call. Return the gradient and assign "
        "it after the call, or keep it in a buffer."
    )
    # AOTAutograd loses `del x.grad`
    raise error.to_eager("it deletes the .grad of a tensor") if len(args) == 1 else error


def _hook(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A hook of a gradient; those of tensors from outside are noted for `check_hooks`."""
    handle = func(*args, **kwargs)
    if mode.real_of(args[0]) is not None and not mode.in_optimizer:
        mode.hooked.append((handle, func.__name__, mode.recorder.locator.here()))
    return handle


def _flag(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A change of `requires_grad`; those of tensors that stay are noted for `changed_flags`."""
    result = func(*args, **kwargs)
    known = mode.reals.get(id(args[0]))
    if known is not None and not mode.in_optimizer:
        place = mode.recorder.locator.here()
        mode.flagged.setdefault(id(known[1]), (known[1], known[0], place))
    return result


def _history(what: str) -> Handler:
    """A handler for methods that change the autograd history of a tensor that is no leaf."""

    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        real = mode.real_of(args[0])
        if real is not None and not mode.in_optimizer and not _is_leaf(real):
            raise GraphTraceError(
                f"{describe(mode.recorder.locator.here())}: build() calls {what} of a tensor from outside, whose "
                "history a program does not have. Call it before the graph."
            )
        return func(*args, **kwargs)

    return handler


def _is_leaf(real: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return real.is_leaf


def _gradients(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.autograd.grad`, which refuses a gradient whose shape is not that of its result. Of a result whose shape
    depends on values, a program cannot tell.

    Raises:
        GraphTraceError: there is such a result, and its gradient has another shape, as far as is known.
    """
    words = dict(zip(("outputs", "inputs", "grad_outputs"), args)) | kwargs
    given = words.get("grad_outputs")
    if mode.recorder.sizes is None or given is None:
        return func(*args, **kwargs)
    for output, gradient in zip(
        tree_leaves(words["outputs"]), tree_leaves(given, is_leaf=_is_none)
    ):
        if gradient is not None and not _fits(mode.recorder.sizes, gradient, output):
            where = describe(mode.recorder.locator.here())
            raise GraphTraceError(
                f"{where}: torch.autograd.grad() takes a gradient for a result whose shape depends on values, and a "
                "program cannot compare the shapes of the two. Reduce the result to a number first: "
                "(result * gradient).sum()."
            )
    return func(*args, **kwargs)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _fits(sizes: UnknownSizes, gradient: Tensor, output: Tensor) -> bool:
    """Whether sizes of a result that depend on values are sizes of its gradient, too."""
    return all(
        not sizes.is_unknown(n) or (isinstance(m, torch.SymInt) and m.node.expr == n.node.expr)  # type: ignore[attr-defined]
        for n, m in zip(output.shape, gradient.shape)
    )


HANDLERS: dict[Any, Handler] = {
    torch.autograd.grad: _gradients,
    Tensor.backward: _backward,
    Tensor.grad.__get__: _gradient,  # type: ignore[union-attr]
    Tensor.grad.__set__: _set_gradient,  # type: ignore[union-attr]
    Tensor.grad.__delete__: _set_gradient,  # type: ignore[union-attr]
    Tensor.register_hook: _hook,
    Tensor.register_post_accumulate_grad_hook: _hook,
    Tensor.requires_grad_: _flag,
    Tensor.requires_grad.__set__: _flag,  # type: ignore[attr-defined]
    Tensor.detach_: _history("detach_()"),
    torch.detach_: _history("detach_()"),
    Tensor.retain_grad: _history("retain_grad()"),
}

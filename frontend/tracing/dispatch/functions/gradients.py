"""`backward()` and `.grad`."""

from __future__ import annotations

from typing import Any

import torch

from gflow.errors import GraphTraceError

from ..recorder import describe
from .proxies import Handler, TensorProxies

Tensor = torch.Tensor


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


def _gradient(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gradient = func(*args)
    if gradient is None and not mode.in_optimizer:
        _gradient_from_outside(mode, args[0])
    if mode.read_gradient is None or gradient is None or mode.in_optimizer:
        return gradient
    mode.read_gradient(args[0])
    return func(*args)


HANDLERS: dict[Any, Handler] = {
    Tensor.backward: _backward,
    Tensor.grad.__get__: _gradient,  # type: ignore[union-attr]
}

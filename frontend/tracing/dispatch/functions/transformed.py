"""Calls within transforms of `torch.func` (vmap, grad, vjp, jvp, and what is made of them) in `build()`.

The transforms run above functionalization: vmap turns a call into one on whole batches, grad and jvp into those of the
derivative, and the recorder gets these. Handlers of functions are for tensors without a transform's wrapper. A function
that needs its handler is refused for others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    is_functorch_wrapped_tensor,
)
from torch.utils._pytree import tree_leaves

from gflow.errors import GraphTraceError

from ..recorder import describe
from .in_place import write_problem
from .proxies import TensorProxies

_TRANSFORMS = (TransformType.Vmap, TransformType.Grad, TransformType.Jvp)
#: functions whose handlers only matter for tensors from outside, layouts, numbers, or sizes that depend on values
_WITHOUT_HANDLER = {
    Tensor.__getitem__, Tensor.__bool__, Tensor.item, Tensor.requires_grad_, Tensor.__repr__, Tensor.__format__,
    F.scaled_dot_product_attention, F.dropout, torch.dropout, F.max_pool1d, torch.max_pool1d, torch.ldexp, Tensor.ldexp,
    torch.autograd.grad,
}  # fmt: skip

#: the parameters of functions whose handlers are for updates
_PARAMETERS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.embedding: ("input", "weight", "padding_idx", "max_norm", "norm_type", "freq", "sparse"),
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training"),
}


def is_wrapped(args: Any) -> bool:
    """Whether there is a tensor of a transform among nested arguments."""
    return any(isinstance(x, Tensor) and is_functorch_wrapped_tensor(x) for x in tree_leaves(args))


def call(
    mode: TensorProxies,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    handled: bool,
) -> Any:
    """A call of a function that gets tensors of a transform, or none.

    Args:
        handled: whether the function has a handler.

    Raises:
        GraphTraceError: a graph cannot record it.
    """
    stack = get_interpreter_stack() or ()
    if any(level.key() not in _TRANSFORMS for level in stack):
        raise _problem(mode, "torch.func.functionalize")
    if handled and func not in _WITHOUT_HANDLER and not _is_pure(func, args, kwargs):
        raise _problem(mode, f"{getattr(func, '__name__', func)}() within a torch.func transform")
    args = tuple([_lifted(mode, a) for a in args])
    kwargs = {k: _lifted(mode, v) for k, v in kwargs.items()}
    problem = write_problem(func, args, kwargs, mode.concrete)
    if problem is not None:
        raise GraphTraceError(f"{describe(mode.recorder.locator.here())}: {problem}")
    return func(*args, **kwargs)


def _is_pure(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a layer updates nothing: rows of a table without norms, and batch norm by given statistics, or
    by those of the batch alone."""
    names = _PARAMETERS.get(func)
    if names is None:
        return False
    given = dict(zip(names, args, strict=False)) | kwargs
    if func is F.embedding:
        return given.get("max_norm") is None and not given.get("sparse")
    return not given.get("training") or given["running_mean"] is None


def _problem(mode: TensorProxies, what: str) -> GraphTraceError:
    return GraphTraceError(
        f"{describe(mode.recorder.locator.here())}: build() uses {what}, which a graph cannot record. Write the batch "
        "dimension out, and use torch.autograd.grad(..., create_graph=True) for derivatives; or call the function "
        "through gflow.compile."
    )


def _lifted(mode: TensorProxies, arg: Any) -> Any:
    """`arg` with real tensors replaced by their proxies, which no transform wraps."""
    if isinstance(arg, Tensor):
        if is_functorch_wrapped_tensor(arg) or torch._is_functional_tensor(arg):
            return arg
        with torch._C._DisableFuncTorch():
            return mode.wrapper_of(arg)
    kind = type(arg)
    if kind is tuple or kind is list:
        return kind([_lifted(mode, a) for a in arg])
    if kind is dict:
        return {k: _lifted(mode, v) for k, v in arg.items()}
    return arg

"""Replaces functions of PyTorch while a graph is traced.

Functions that read the values of tensors, or use kernels whose shape rules are wrong, are replaced by equivalent ones.
Functions that cannot be part of a graph raise errors. Other threads keep the originals.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _functorch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch import eager_transforms, vmap
from torch.autograd.function import BackwardCFunction
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode

from gflow.errors import GraphTraceError

from ..context.location import here
from ..context.threads import here_only, replaced
from ..program import collectives, seeding
from .clipping import total_norm
from .failures.assertions import check_tensor_all_with


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether `is_causal` is set. The original also compares the mask's values with a causal mask, to choose a faster
    kernel."""
    return is_causal is True


_batch_norm_forward = _BatchNorm.forward


def _batch_norm(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """`_BatchNorm.forward`. With momentum=None (a cumulative average), the original converts the counter to a Python
    number; here the average is computed on tensors."""
    mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
    moves = self.training and self.track_running_stats and self.momentum is None
    if not moves or mean is None or count is None:
        return _batch_norm_forward(self, input)
    assert var is not None
    self._check_input_dim(input)
    with torch.no_grad():
        count.add_(1)
        batch_mean, batch_var = mean.clone(), var.clone()
    out = torch.nn.functional.batch_norm(
        input, batch_mean, batch_var, self.weight, self.bias, True, 1.0, self.eps
    )
    with torch.no_grad():
        mean.add_((batch_mean - mean) / count)
        var.add_((batch_var - var) / count)
    return out


def _no_step(self: torch.optim.Optimizer, *_: Any) -> None:
    raise GraphTraceError(
        f"{here()}: build() calls {type(self).__name__}.step(); the graph runs the update of "
        "its optimizers after build() by itself. Leave step() out, and pass the optimizer to "
        "add_optimizer() in __init__."
    )


def _no_parameter(*_: Any, **__: Any) -> Any:
    raise GraphTraceError(
        f"{here()}: build() makes a parameter, or a module with parameters, which would be "
        "new and untrained at every call. Make it in __init__ and use it here."
    )


def _no_swap(*_: Any) -> None:
    error = GraphTraceError(
        f"{here()}: build() calls torch.utils.swap_tensors(), which gives two tensors each other's memory. A program "
        "can only write into the memory of its arguments. Exchange the values, or the names."
    )
    raise error.to_eager("a graph cannot exchange the memory of tensors (torch.utils.swap_tensors)")


def _no_other_memory(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`x.set_(y)`, which function modes do not see. PyTorch makes fake tensors so, of tensors on `meta`."""
    if torch._is_functional_tensor(self) or self.is_meta:
        return _SET(self, *args, **kwargs)
    raise GraphTraceError(
        f"{here()}: build() replaces the memory of a tensor from outside (.set_()), which a program cannot do: it can "
        "only write into that memory. Write x.copy_(y), or return the new tensor."
    )


def _as_subclass(self: torch.Tensor, cls: type[Any]) -> torch.Tensor:
    """`x.as_subclass(C)`, which function modes do not see."""
    if cls is not torch.Tensor:
        raise _no_subclass(cls)
    return self.view_as(self)


def _make_subclass(cls: type[Any], data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.Tensor._make_subclass(C, x)`. PyTorch makes fake tensors so, of tensors on `meta`."""
    if torch._is_functional_tensor(data):
        raise _no_subclass(cls)
    return _MAKE(cls, data, *args, **kwargs)


def _no_subclass(cls: type[Any]) -> GraphTraceError:
    what = f"makes a {cls.__module__}.{cls.__qualname__} of a tensor"
    return GraphTraceError(
        f"{here()}: build() {what}, and a graph would ignore what this class makes of operations, and of their "
        "results. Compute with plain tensors, and make it from the result of the call."
    ).to_eager(f"it {what}")


_MAKE = torch.Tensor._make_subclass
_SET = torch.Tensor.set_
#: a function of PyTorch: its owner, name, original, and an equivalent function that can be traced
_EQUAL: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
    (owner, name, getattr(owner, name), function)
    for owner, name, function in (
        (transformer, "_detect_is_causal_mask", _is_causal),
        (_BatchNorm, "forward", _batch_norm),
        (clip_grad, "_get_total_norm", total_norm),
        (torch, "_check_tensor_all_with", check_tensor_all_with),
    )
]


def _from_numpy(array: Any) -> torch.Tensor:
    """`torch.from_numpy`, by a function that function modes see."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(array) is numpy.ndarray:
        return torch.as_tensor(array)
    return _NUMPY(array)


_NUMPY = torch.from_numpy


def _replacements() -> list[tuple[Any, str, Any]]:
    """Replacements for the thread that traces. PyTorch looks all of these names up at every call."""
    new_parameter = torch.nn.Parameter.__new__
    return [
        # libraries call torch.compiler.is_compiling() before they read values
        (torch.compiler, "is_compiling", here_only(torch.compiler.is_compiling, lambda: True)),
        *(
            (owner, name, here_only(original, function))
            for owner, name, original, function in _EQUAL
            if getattr(owner, name) is original  # another library's replacement is kept
        ),
        (torch._C, "_swap_tensor_impl", here_only(torch._C._swap_tensor_impl, _no_swap)),  # type: ignore[attr-defined]
        (torch, "from_numpy", here_only(torch.from_numpy, _from_numpy)),
        (torch.Tensor, "set_", here_only(_SET, _no_other_memory)),
        (torch.Tensor, "_make_subclass", staticmethod(here_only(_MAKE, _make_subclass))),
        (torch.nn.Parameter, "__new__", staticmethod(here_only(new_parameter, _no_parameter))),
        *_compiled_functions(),
    ]


def _compiled_functions() -> list[tuple[Any, str, Any]]:
    """A replacement with which functions of `torch.compile` run uncompiled: TorchDynamo cannot compile them for traced
    tensors."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is None:  # nothing was compiled
        return []
    name = "_callback_from_stance"
    return [(module, name, here_only(getattr(module, name), lambda callback: None))]


def _nothing(*_: Any) -> None:
    pass


def _lifting(
    wrap: Callable[..., torch.Tensor], lift: Callable[[Any], Any]
) -> Callable[..., torch.Tensor]:
    """A function that makes the tensor of a transform (`vmap`, `grad`) from another one. It is given traced ones."""

    def lifted(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        if not is_functorch_wrapped_tensor(tensor):
            with torch._C._DisableFuncTorch():
                tensor = lift(tensor)
        return wrap(tensor, *args)

    return lifted


@contextlib.contextmanager
def traceable_library(
    mode: TorchFunctionMode, lift: Callable[[Any], Any], seed: seeding.Seed
) -> Iterator[None]:
    """Active around `build()`.

    Args:
        mode: the function mode of the trace. It is not active while `backward()` runs, in which the code of an
            `autograd.Function` may use real tensors: the parameters of a module that it calls again.
        lift: replaces real tensors by their traced proxies. `autograd.Function.apply` cannot be overridden by function
            modes, but calls `unwrap_dead_wrappers` on its arguments, which is replaced.
        seed: the state of PyTorch's generator.
    """
    unwrap = _functorch.utils.unwrap_dead_wrappers
    lifted = (
        _functorch.utils,
        "unwrap_dead_wrappers",
        here_only(unwrap, lambda args: lift(unwrap(args))),
    )
    backward = BackwardCFunction.apply

    def traced_backward(self: Any, *gradients: Any) -> Any:
        with mode:
            return backward(self, *gradients)

    backwards = (BackwardCFunction, "apply", here_only(backward, traced_backward))
    plain = (
        torch.Tensor,
        "as_subclass",
        here_only(torch.Tensor.as_subclass, lambda self, cls: _as_subclass(lift(self), cls)),
    )
    transforms = [
        (owner, name, here_only(wrap, _lifting(wrap, lift)))
        for owner, name in ((vmap, "_add_batch_dim"), (eager_transforms, "_wrap_for_grad"))
        for wrap in (getattr(owner, name),)
    ]
    hook = optimizer.register_optimizer_step_pre_hook(here_only(_nothing, _no_step))
    try:
        with replaced(
            *_replacements(),
            *collectives.replaced(),
            *seeding.refused(seed),
            lifted,
            backwards,
            plain,
            *transforms,
        ):
            yield
    finally:
        hook.remove()

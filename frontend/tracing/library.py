"""PyTorch's own code while a graph is traced: functions that look at the values of tensors, or
take kernels whose shape rules are wrong, are replaced by equal ones; what cannot be part of a
graph is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad
from torch.optim import optimizer

from ..errors import GraphTraceError
from . import collectives
from .clipping import total_norm
from .location import user_frame


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """The original compares the mask's values with a causal one, to take a faster kernel."""
    return is_causal is True


_batch_norm_forward = _BatchNorm.forward


def _batch_norm(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """With momentum=None (a cumulative average), the original makes a Python number of the
    counter; here the average is taken on tensors."""
    mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
    if self.momentum is not None or not self.training or mean is None or count is None:
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
    file, line = user_frame(2)
    raise GraphTraceError(
        f"{file}:{line}: build() calls {type(self).__name__}.step(); the graph runs the update of "
        "its optimizers after build() by itself. Leave step() out, and pass the optimizer to "
        "add_optimizer() in __init__."
    )


def _no_parameter(*_: Any, **__: Any) -> Any:
    file, line = user_frame(2)
    raise GraphTraceError(
        f"{file}:{line}: build() makes a parameter, or a module with parameters, which would be "
        "new and untrained at every call. Make it in __init__ and use it here."
    )


_REPLACED: list[tuple[Any, str, Any]] = [
    # torch.compiler.is_compiling(): libraries ask it before they look at values.
    (torch.compiler, "_is_compiling_flag", True),
    (transformer, "_detect_is_causal_mask", _is_causal),
    (_BatchNorm, "forward", _batch_norm),
    (clip_grad, "_get_total_norm", total_norm),
    (torch.nn.Parameter, "__new__", staticmethod(_no_parameter)),
]


@contextlib.contextmanager
def traceable_library() -> Iterator[None]:
    """Active around `build()`."""
    replaced = [*_REPLACED, *collectives.replaced()]
    originals = [vars(owner)[name] for owner, name, _ in replaced]
    onednn, cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    for owner, name, function in replaced:
        setattr(owner, name, function)
    # oneDNN's and cuDNN's LSTM layers hand their backward a workspace of a size that no shape rule
    # knows; without them, an LSTM is recorded as matrix products and gates. Convolutions are recorded
    # as aten.convolution either way.
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    hook = optimizer.register_optimizer_step_pre_hook(_no_step)
    try:
        yield
    finally:
        hook.remove()
        torch._C._set_mkldnn_enabled(onednn)
        torch._C._set_cudnn_enabled(cudnn)
        for (owner, name, _), original in zip(replaced, originals):
            setattr(owner, name, original)

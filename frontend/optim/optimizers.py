"""PyTorch's optimizers with the additional arguments of OneFlow's, and OneFlow's `LAMB`.

    contiguous_params    accepted with a warning: a graph does not move parameters;
                         `config.enable_multi_tensor_update()` merges the kernels of updates
    do_bias_correction   for Adam and AdamW: False omits the bias correction of the moments
    clip_grad()          clips by the keys of parameter groups, for steps outside of graphs

Each is a subclass of PyTorch's, with PyTorch's formulas, defaults and state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import optim
from torch.optim.optimizer import ParamsT

from gflow.tracing.context.location import user_frame
from gflow.tracing.dispatch.clipping import MAX_NORM, clip_groups

_CORRECTION = "do_bias_correction"


class _OneFlowArguments:
    """Takes OneFlow's arguments away before PyTorch sees them, and adds `clip_grad()`."""

    param_groups: list[dict[str, Any]]

    def __init__(
        self, params: ParamsT, *args: Any, contiguous_params: bool = False, **kwargs: Any
    ) -> None:
        if not isinstance(contiguous_params, bool):
            raise TypeError(f"contiguous_params must be True or False; got {contiguous_params!r}")
        if contiguous_params:
            _warn(
                f"{type(self).__name__}(contiguous_params=True) has no effect: parameters are not moved. Use "
                "graph.config.enable_multi_tensor_update() to merge the kernels that update them"
            )
        super().__init__(params, *args, **kwargs)  # type: ignore[call-arg]

    @torch.no_grad()
    def clip_grad(self, error_if_nonfinite: bool = False) -> None:
        """Scale the gradients of each parameter group with the key `clip_grad_max_norm` down to that norm, of
        the kind `clip_grad_norm_type` (default 2). Graphs do this automatically.

        Raises:
            RuntimeError: `error_if_nonfinite`, and a norm is inf or nan.
        """
        if not any(group.get(MAX_NORM) is not None for group in self.param_groups):
            _warn(f"clip_grad() has no effect: no parameter group has the key {MAX_NORM!r}")
        clip_groups(self.param_groups, error_if_nonfinite)


def _warn(text: str) -> None:
    warnings.warn_explicit(text, UserWarning, *user_frame(3))


class SGD(_OneFlowArguments, optim.SGD):
    """`torch.optim.SGD`; also takes `contiguous_params`."""


class Adagrad(_OneFlowArguments, optim.Adagrad):
    """`torch.optim.Adagrad`; also takes `contiguous_params`."""


class RMSprop(_OneFlowArguments, optim.RMSprop):
    """`torch.optim.RMSprop`; also takes `contiguous_params`."""


class LBFGS(_OneFlowArguments, optim.LBFGS):
    """`torch.optim.LBFGS`; also takes `contiguous_params`. Graphs do not support it, since its step runs the
    model several times."""


class Adadelta(_OneFlowArguments, optim.Adadelta):
    """`torch.optim.Adadelta`; also takes `contiguous_params`."""

    def __init__(self, params: ParamsT, *args: Any, **kwargs: Any) -> None:
        if len(args) > 4:
            raise TypeError(
                "the argument after weight_decay is maximize in OneFlow and foreach in PyTorch; pass it by "
                "name"
            )
        super().__init__(params, *args, **kwargs)


class _Uncorrected(_OneFlowArguments):
    """Adds steps without bias correction, for groups with `do_bias_correction=False`."""

    decoupled = False

    def __init__(
        self, params: ParamsT, *args: Any, do_bias_correction: bool = True, **kwargs: Any
    ) -> None:
        if len(args) > 5:
            raise TypeError(
                "arguments after amsgrad differ between OneFlow and PyTorch; pass them by name"
            )
        super().__init__(params, *args, **kwargs)
        self.defaults[_CORRECTION] = do_bias_correction  # type: ignore[attr-defined]
        for group in self.param_groups:
            group.setdefault(_CORRECTION, do_bias_correction)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters.

        closure: runs the model again and returns the loss; not supported in graphs.
        """
        every = self.param_groups
        plain = [g for g in every if not g.get(_CORRECTION, True)]
        if not plain:
            return super().step(closure)  # type: ignore[misc]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:  # PyTorch's step looks at the attribute alone
            self.param_groups = [g for g in every if g.get(_CORRECTION, True)]
            if self.param_groups:
                super().step()  # type: ignore[misc]
        finally:
            self.param_groups = every
        for group in plain:
            self._uncorrected(group)
        return loss

    @torch.no_grad()
    def _uncorrected(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        for p in group["params"]:
            if p.grad is None:
                continue
            grad = -p.grad if group["maximize"] else p.grad
            decay = group["weight_decay"]
            if decay and self.decoupled:
                p.mul_(1 - group["lr"] * decay)
            elif decay:
                grad = grad.add(p, alpha=decay)
            state = self.state[p]  # type: ignore[attr-defined]
            mean, square = _moments(state, p)
            if group["amsgrad"] and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = torch.zeros_like(p)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if group["amsgrad"]:
                largest = state["max_exp_avg_sq"]
                largest.copy_(torch.maximum(largest, square))
                square = largest
            p.sub_(mean / (square.sqrt() + group["eps"]) * group["lr"])


class Adam(_Uncorrected, optim.Adam):
    """`torch.optim.Adam`; also takes `do_bias_correction` and `contiguous_params`."""


class AdamW(_Uncorrected, optim.AdamW):
    """`torch.optim.AdamW`; also takes `do_bias_correction` and `contiguous_params`."""

    decoupled = True


class LAMB(_OneFlowArguments, optim.Optimizer):
    """Adam with a step whose norm follows the norm of each parameter ("Large Batch Optimization for Deep Learning:
    Training BERT in 76 minutes").

        m = beta1 * m + (1 - beta1) * grad        v = beta2 * v + (1 - beta2) * grad²
        u = (m / c1) / (sqrt(v / c2) + eps)       c = 1 - beta**step, or 1 without do_bias_correction
        parameter -= lr * (|parameter| / |u|) * (u + weight_decay * parameter)

    The factor |parameter| / |u| is 1 where either norm is 0.

    Args:
        params: parameters, or groups of them.
        adam_w_mode: False adds `weight_decay * parameter` to the gradient instead.

    Raises:
        ValueError: an argument is outside of its range.
        RuntimeError: `amsgrad` is set, which LAMB does not support.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        adam_w_mode: bool = True,
        do_bias_correction: bool = True,
        amsgrad: bool = False,
        contiguous_params: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("LAMB has no AMSGrad variant; leave amsgrad out")
        named = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        for name, value in named.items():
            if value < 0:
                raise ValueError(f"{name} must be 0 or more; got {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be numbers in [0, 1); got {betas!r}")
        options = {"betas": betas, "adam_w_mode": adam_w_mode, _CORRECTION: do_bias_correction}
        super().__init__(params, {**named, **options}, contiguous_params=contiguous_params)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters.

        closure: runs the model again and returns the loss; not supported in graphs.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        state, decoupled = self.state[p], group["adam_w_mode"]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        mean, square = _moments(state, p)
        grad: Any = p.grad
        if decay and not decoupled:
            grad = grad.add(p, alpha=decay)
        state["step"] += 1
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        direction, root = mean, square.sqrt()
        if group[_CORRECTION]:
            corrected = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
            first, second = (c.to(p.device, p.dtype) for c in corrected)
            direction, root = mean / first, root / second.sqrt()
        direction = direction / (root + group["eps"])
        length, step = torch.linalg.vector_norm(p), torch.linalg.vector_norm(direction)
        ratio = torch.where((length > 0) & (step > 0), length / step, 1.0)
        if decay and decoupled:
            direction = direction + decay * p
        p.sub_(direction * (ratio * group["lr"]))


def _moments(state: dict[str, Any], p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The running means of a parameter's gradients and of their squares, made where they are missing."""
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return state["exp_avg"], state["exp_avg_sq"]

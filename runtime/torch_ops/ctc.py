"""CTC loss with lengths in tensors, as one op of PyTorch's dispatcher.

PyTorch's op also returns the table `log_alpha`, whose width is the greatest target length: a value. This op returns the
losses only, and its gradient computes the table again:

    gflow::ctc_loss(log_probs [T, N, C], targets [N, S] or [sum], input_lengths [N], target_lengths [N], blank,
                    zero_infinity) -> losses [N]
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor

_TAKES = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool zero_infinity"
)
torch.library.define("gflow::ctc_loss", f"({_TAKES}) -> Tensor")
torch.library.define("gflow::ctc_loss_backward", f"(Tensor gradient, {_TAKES}) -> Tensor")
_loss = torch.ops.gflow.ctc_loss.default
_loss_backward = torch.ops.gflow.ctc_loss_backward.default


@torch.library.impl("gflow::ctc_loss", "CompositeExplicitAutograd")
def _forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:  # fmt: skip
    inputs, labels = _numbers(input_lengths), _numbers(target_lengths)
    return torch._ctc_loss(log_probs, targets, inputs, labels, blank, zero_infinity)[0]


@torch.library.register_fake("gflow::ctc_loss")
def _shape(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:  # fmt: skip
    return log_probs.new_empty((log_probs.shape[1],))


@torch.library.impl("gflow::ctc_loss_backward", "CompositeExplicitAutograd")
def _backward(
    gradient: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int,
    zero_infinity: bool,
) -> Tensor:  # fmt: skip
    lengths = (_numbers(input_lengths), _numbers(target_lengths))
    losses, log_alpha = torch._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    found: Tensor = torch.ops.aten._ctc_loss_backward(
        gradient, log_probs, targets, *lengths, losses, log_alpha, blank, zero_infinity
    )
    return found.contiguous()


@torch.library.register_fake("gflow::ctc_loss_backward")
def _shape_of_gradient(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape)


def _numbers(lengths: Tensor) -> list[int]:
    found: list[int] = lengths.tolist()
    return found


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, gradient: Tensor) -> Any:
    found = _loss_backward(gradient, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return found, None, None, None, None, None


torch.library.register_autograd("gflow::ctc_loss", _gradients, setup_context=_keep)


def losses(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:  # fmt: skip
    """`gflow::ctc_loss`."""
    found: Tensor = _loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    return found

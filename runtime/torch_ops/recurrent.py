"""A layer of an LSTM, a GRU or a plain RNN over a dynamic length, as one op of PyTorch's dispatcher.

The loops of a program have a static number of steps. A recurrence over a dynamic length therefore is PyTorch's own
layer:

    gflow::recurrent_layer(input [T, N, F], state, weights, kind, biased, both_ways)
        -> output [T, N, D * P], hidden [D, N, P], cell [D, N, H]

kind: "lstm", "gru", "rnn_tanh" or "rnn_relu". state: the hidden state [D, N, P] and, for an LSTM, the cell [D, N, H].
weights: as `torch.nn.LSTM` has them for one layer, for each of the D directions. H: hidden units; P: units after a
projection, otherwise H. Layers without a cell return an empty one. The gradient runs the layer again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensor = torch.Tensor

_TAKES = "Tensor input, Tensor[] state, Tensor[] weights, str kind, bool biased, bool both_ways"
torch.library.define("gflow::recurrent_layer", f"({_TAKES}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "gflow::recurrent_layer_backward",
    f"(Tensor output, Tensor hidden, Tensor cell, {_TAKES}) -> (Tensor, Tensor, Tensor, Tensor)",
)
_layer = torch.ops.gflow.recurrent_layer.default
_layer_backward = torch.ops.gflow.recurrent_layer_backward.default


def _run(
    input: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], kind: str, biased: bool, both_ways: bool,
    train: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """PyTorch's layer: output, hidden state and, for an LSTM, cell."""
    first: Any = [*state] if kind == "lstm" else state[0]
    words = (biased, 1, 0.0, train, both_ways, False)
    found: tuple[Tensor, ...] = getattr(torch, kind)(input, first, [*weights], *words)
    return found


@torch.library.impl("gflow::recurrent_layer", "CompositeExplicitAutograd")
def _forward(
    input: Tensor, state: list[Tensor], weights: list[Tensor], kind: str, biased: bool, both_ways: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        found = [
            t.contiguous() for t in _run(input, state, weights, kind, biased, both_ways, False)
        ]
    output, hidden, *cell = found
    return output, hidden, cell[0] if cell else hidden.new_empty((0, 0, 0))


@torch.library.register_fake("gflow::recurrent_layer")
def _shapes(
    input: Tensor, state: list[Tensor], weights: list[Tensor], kind: str, biased: bool, both_ways: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    length, batch, _ = input.shape
    directions, _, width = state[0].shape
    cell = (directions, batch, state[1].shape[2]) if kind == "lstm" else (0, 0, 0)
    return (
        input.new_empty((length, batch, directions * width)),
        input.new_empty((directions, batch, width)),
        input.new_empty(cell),
    )


@torch.library.impl("gflow::recurrent_layer_backward", "CompositeExplicitAutograd")
def _backward(
    output: Tensor, hidden: Tensor, cell: Tensor, input: Tensor, state: list[Tensor], weights: list[Tensor], kind: str,
    biased: bool, both_ways: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the input, of the states (flattened and concatenated), and of the weights (likewise)."""
    with torch.enable_grad():
        given = [t.detach().requires_grad_() for t in (input, *state, *weights)]
        count = 1 + len(state)
        results = _run(given[0], given[1:count], given[count:], kind, biased, both_ways, True)
        coming = [g.to(r.dtype) for g, r in zip((output, hidden, cell), results)]
        found = torch.autograd.grad(results, given, coming, allow_unused=True)
    whole = [torch.zeros_like(t) if g is None else g for g, t in zip(found, given)]
    cells = whole[2] if kind == "lstm" else cell.new_empty((0, 0, 0))
    flat = torch.cat([g.reshape(-1) for g in whole[count:]])
    return whole[0].contiguous(), whole[1].contiguous(), cells.contiguous(), flat


@torch.library.register_fake("gflow::recurrent_layer_backward")
def _backward_shapes(
    output: Tensor, hidden: Tensor, cell: Tensor, input: Tensor, state: list[Tensor], weights: list[Tensor], kind: str,
    biased: bool, both_ways: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    cells = state[1].shape if kind == "lstm" else (0, 0, 0)
    return (
        input.new_empty(input.shape),
        input.new_empty(state[0].shape),
        input.new_empty(cells),
        input.new_empty((sum(w.numel() for w in weights),)),
    )


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    input, state, weights, *ctx.words = inputs
    ctx.states = len(state)
    ctx.save_for_backward(input, *state, *weights)


def _gradients(ctx: Any, output: Tensor, hidden: Tensor, cell: Tensor) -> Any:
    input, *held = ctx.saved_tensors
    state, weights = held[: ctx.states], held[ctx.states :]
    found = _layer_backward(output, hidden, cell, input, state, weights, *ctx.words)
    parts = found[3].split([w.numel() for w in weights])
    of_weights = [p.view(w.shape) for p, w in zip(parts, weights)]
    return found[0], [*found[1 : 1 + ctx.states]], of_weights, None, None, None


torch.library.register_autograd("gflow::recurrent_layer", _gradients, setup_context=_keep)


def layer(
    input: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], kind: str, biased: bool, both_ways: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`gflow::recurrent_layer`."""
    found: tuple[Tensor, Tensor, Tensor] = _layer(
        input, [*state], [*weights], kind, biased, both_ways
    )
    return found

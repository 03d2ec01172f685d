"""Cells of recurrent networks, which PyTorch has as one kernel each on a GPU.

The formulas and what the workspaces hold are those of PyTorch's `RNN.cu`.
"""

from __future__ import annotations

from typing import Any

from ...emitter import Emitter, Value
from ...registry import lowers


def _parts(em: Emitter, x: Value, count: int) -> list[Value]:
    """[N, count·H] as `count` tensors [N, H]."""
    size = x.shape[-1] // count
    return [em.slice(x, x.rank - 1, n * size, (n + 1) * size) for n in range(count)]


def _gates(em: Emitter, gates: Value, bias: Value | None, count: int) -> list[Value]:
    """A product's gates in the type to compute in, with their bias."""
    wide = gates.compute()
    return _parts(em, wide if bias is None else wide + bias.compute(), count)


def _joined(em: Emitter, parts: list[Value], dtype: str) -> Value:
    return em.concatenate(parts, parts[0].rank - 1).to(dtype)


@lowers("aten._thnn_fused_lstm_cell")
def lstm_cell(
    em: Emitter, input_gates: Value, hidden_gates: Value, cx: Value,
    input_bias: Value | None = None, hidden_bias: Value | None = None,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """[N, 4·H] gates and a cell [N, H] to the hidden state, the cell, and the gates' values."""
    pairs = zip(_gates(em, input_gates, input_bias, 4), _gates(em, hidden_gates, hidden_bias, 4))
    i, f, c, o = (a + b for a, b in pairs)
    i, f, c, o = em("sigmoid", i), em("sigmoid", f), em("tanh", c), em("sigmoid", o)
    cy = f * cx.compute() + i * c
    hy = o * em("tanh", cy)
    return hy.to(cx.dtype), cy.to(cx.dtype), _joined(em, [i, f, c, o], cx.dtype)


@lowers("aten._thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    em: Emitter, dhy: Value | None, dcy: Value | None, cx: Value, cy: Value, workspace: Value,
    has_bias: bool,
) -> tuple[Value, Value, Value | None]:  # fmt: skip
    """Gradients of gates, cell state and bias. workspace: the activated gates, [batch, 4 · hidden]."""
    i, f, c, o = _parts(em, workspace.compute(), 4)
    y = em("tanh", cy.compute())
    dcell = em.full(0, cx.shape, y.dtype) if dcy is None else dcy.compute()
    do = em.full(0, cx.shape, y.dtype)
    if dhy is not None:
        do = dhy.compute() * y
        dcell = dcell + dhy.compute() * o * (1 - y * y)
    gates = [
        dcell * c * (1 - i) * i,
        dcell * cx.compute() * (1 - f) * f,
        dcell * i * (1 - c * c),
        do * (1 - o) * o,
    ]
    dgates = _joined(em, gates, workspace.dtype)
    return dgates, (dcell * f).to(cx.dtype), dgates.sum([0]) if has_bias else None


@lowers("aten._thnn_fused_gru_cell")
def gru_cell(
    em: Emitter, input_gates: Value, hidden_gates: Value, hx: Value,
    input_bias: Value | None = None, hidden_bias: Value | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    """[N, 3·H] gates and a state [N, H] to the next state and what the gradient needs, [N, 5·H]."""
    ir, iz, i_n = _gates(em, input_gates, input_bias, 3)
    hr, hz, hn = _gates(em, hidden_gates, hidden_bias, 3)
    r, z = em("sigmoid", ir + hr), em("sigmoid", iz + hz)
    n = em("tanh", i_n + r * hn)
    x = hx.compute()
    hy = n + z * (x - n)
    return hy.to(hx.dtype), _joined(em, [r, z, n, x, hn], hx.dtype)


@lowers("aten._thnn_fused_gru_cell_backward")
def gru_cell_backward(
    em: Emitter, dhy: Value, workspace: Value, has_bias: bool
) -> tuple[Value | None, ...]:
    """Gradients of both gates' inputs, the hidden state and the biases. workspace: [batch, 5 · hidden]."""
    r, z, n, hx, hn = _parts(em, workspace.compute(), 5)
    d = dhy.compute()
    dz = d * (hx - n) * (1 - z) * z
    dn = d * (1 - z) * (1 - n * n)
    dr = dn * hn * (1 - r) * r
    dinput = _joined(em, [dr, dz, dn], workspace.dtype)
    dhidden = _joined(em, [dr, dz, dn * r], workspace.dtype)
    biases: tuple[Any, Any] = (dinput.sum([0]), dhidden.sum([0])) if has_bias else (None, None)
    return dinput, dhidden, (d * z).to(dhy.dtype), *biases

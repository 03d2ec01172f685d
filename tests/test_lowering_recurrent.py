"""Cells of recurrent networks as a GPU has them, one op each. (PyTorch has no shape rule for a GRU's on the CPU:
it is tested by `scripts/cuda_standin.sh`.)"""

from __future__ import annotations

from typing import Any

import torch
from test_lowering import run, trace

from gflow.lowering import escaped, lower

aten = torch.ops.aten
Tensor = torch.Tensor
N, H = 3, 4


def formulas(traced: Any, *args: Tensor) -> list[Tensor]:
    module = lower(traced)
    assert not escaped(module)
    return run(traced, module, *args)


def lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def test_lstm_cell() -> None:
    x, h, b, d = (torch.randn(*s) for s in ((N, 4 * H), (N, 4 * H), (4 * H,), (4 * H,)))
    c, dh, dc = (torch.randn(N, H) for _ in range(3))

    def build(*args: Tensor) -> Any:
        x, h, c, b, d, dh, dc = args
        hy, cy, kept = aten._thnn_fused_lstm_cell(x, h, c, b, d)
        return hy, cy, *aten._thnn_fused_lstm_cell_backward_impl(dh, dc, c, cy, kept, True)

    args = (x, h, c, b, d, dh, dc)
    got = formulas(trace(build, *args), *args)
    gates, cell = (x + h + b + d).requires_grad_(), c.clone().requires_grad_()
    wanted = lstm(gates, cell)
    dgates, dcell = torch.autograd.grad(wanted, (gates, cell), (dh, dc))
    for found, expected in zip(got, [*wanted, dgates, dcell, dgates.sum(0)], strict=True):
        torch.testing.assert_close(found, expected)

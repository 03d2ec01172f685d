"""A contraction whose own result is needed beside its epilogue's: it lies in no memory that the epilogue still reads.

Steps of training in which a gradient goes two ways behind a product or a convolution, with operands of the epilogue
that are as large as its result and die there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gflow import nn

Tensor = torch.Tensor
ROOTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "linear": ((8, 16), lambda x: x @ (torch.ones(16, 16).to(x) / 8)),
    "batched": ((4, 8, 8), lambda x: x @ (torch.ones(4, 8, 8).to(x) / 8)),
    "conv1d": ((4, 4, 8), lambda x: F.conv1d(x, torch.ones(4, 4, 3).to(x) / 8, padding=1)),
    "conv_transpose1d": ((16, 1, 16), lambda x: F.conv_transpose1d(x, -torch.ones(1, 1, 1).to(x), stride=2)),
    "conv2d": ((2, 4, 6, 6), lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3).to(x) / 8, padding=1, groups=4)),
    "conv_transpose2d": (
        (2, 4, 5, 5), lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 2, 2).to(x) / 8, stride=2)
    ),
    "conv3d": ((1, 2, 4, 4, 4), lambda x: F.conv3d(x, torch.ones(2, 2, 1, 1, 1).to(x) / 4)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ROOTS)
def test_both_ways_of_a_gradient(name: str, dtype: torch.dtype) -> None:
    shape, root = ROOTS[name]
    torch.manual_seed(0)
    start = [torch.rand(shape).to(dtype) + 0.5 for _ in range(2)]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(start[0].clone())
            self.b = torch.nn.Parameter(start[1].clone())

        def forward(self) -> Tensor:
            t = torch.sin(self.a)
            out = root(torch.addcdiv(t, t, self.b))
            weights = ((torch.arange(out.numel()) % 8).to(out.dtype) - 3.5).reshape(out.shape)
            return (out * weights).mean()

    class Step(nn.Graph):
        def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self) -> Tensor:
            loss = self.model()
            loss.backward()
            return loss

    ours, theirs = Model(), Model()
    graph = Step(ours, torch.optim.SGD(ours.parameters(), lr=1.0))
    eager = torch.optim.SGD(theirs.parameters(), lr=1.0)
    for _ in range(2):
        graph()
        eager.zero_grad()
        theirs().backward()
        eager.step()
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)

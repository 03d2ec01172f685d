"""gflow-fold-batch-norm: batch norm in inference becomes part of the weights, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow
from gflow.compiler import CompileOptions
from gflow.compiler.driver.pipelines import PipelineOptions
from gflow.compiler.ir.cost import cost_of
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (4, 3, 9, 9)),
    "no bias": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)),
        (4, 3, 9, 9),
    ),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
        (4, 4, 9, 9),
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
        (4, 4, 9, 9),
    ),
    "1-d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (8, 4, 19)),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (64, 4)),
    "two": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)
        ),
        (4, 3, 9, 9),
    ),
    "not affine": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
        (4, 3, 9, 9),
    ),
}


class Infer(flow.nn.Graph):
    def __init__(self, module: nn.Module, fold: bool) -> None:
        super().__init__()
        self.module = module
        options = PipelineOptions(fold_batch_norm=fold)
        self.config.compile_options = CompileOptions(passes=options)

    def build(self, x: Tensor) -> Any:
        return self.module(x)


def arithmetic(graph: Infer) -> int:
    """Operations of the planned program."""
    context = make_context()
    with context:
        module = ir.Module.parse(graph.ir(generic=True))
        block = module.body.operations[0].operation.regions[0].blocks[0]
        return sum(cost_of(op.operation).flops for op in block.operations)


@pytest.mark.parametrize("name", MODULES)
def test_inference(name: str) -> None:
    make, shape = MODULES[name]
    module = make()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p))
        for _ in range(3):
            module(torch.randn(shape) + 1)  # statistics
    module.eval()
    folded, plain = Infer(module, True), Infer(module, False)
    for _ in range(2):
        x = torch.randn(shape)
        with torch.no_grad():
            want = module.double()(x.double())
            module.float()
            got = folded(x)
            plain(x)
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
        with torch.no_grad():  # the weights are read at every call
            next(module.parameters()).mul_(1.5)
    assert arithmetic(folded) < arithmetic(plain)

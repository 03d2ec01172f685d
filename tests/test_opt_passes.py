"""Passes keep what a function computes: IR before and after, run by the reference interpreter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from call_count import calls
from ir_interpreter import run_module
from random_ir import random_args, random_module
from torch import nn

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.passes.simplify.rewriter import Rewriter
from gflow.compiler.passes.simplify.simplify import RULES
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


def _same(before: list[torch.Tensor], after: list[torch.Tensor], rtol: float = 4e-6) -> None:
    assert len(before) == len(after)
    for want, got in zip(before, after):
        torch.testing.assert_close(got, want, rtol=rtol, atol=4e-6, equal_nan=True)


@pytest.mark.parametrize("pipeline", ["gflow-simplify", "cse,gflow-simplify,cse,canonicalize"])
@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_simplify_keeps_results(context: ir.Context, pipeline: str, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        module = random_module(context, seed)
        args = random_args(module, seed)
        before = run_module(module, args)
        run_pipeline(module, f"builtin.module(func.func({pipeline}))", verify_each=True)
        _same(before, run_module(module, args))


def test_simplify_reaches_its_fixed_point(context: ir.Context) -> None:
    pipeline = "builtin.module(func.func(gflow-simplify,cse))"
    changed = 0
    for seed in range(40):
        module = random_module(context, seed)
        run_pipeline(module, pipeline)
        before = str(module)
        run_pipeline(module, pipeline)
        changed += before != str(module)
    # cse may make two operands equal, which is news to a second sweep; all else is done in one.
    assert changed <= 6


def test_every_rule_is_used(context: ir.Context) -> None:
    """No rule is dead: the lit tests fire each of them."""
    fired: set[str] = set()
    for path in sorted((Path(__file__).parent.parent / "lit_tests" / "simplify").glob("*.mlir")):
        for part in path.read_text().split("// -----\n"):
            with context:
                for op in ir.Module.parse(part).body.operations:
                    rewriter = Rewriter(op, RULES)
                    rewriter.sweep()
                    fired.update(rewriter.fired)
    assert {rule.__name__ for rule in RULES.all()} - fired == set()


def test_simplify_is_linear(context: ir.Context) -> None:
    counts = []
    for count in (2000, 8000):
        module = _chain(context, count)
        pipeline = "builtin.module(func.func(gflow-simplify))"
        counts.append(calls(partial(run_pipeline, module, pipeline)))
    assert counts[1] < 4.6 * counts[0]


def _chain(context: ir.Context, count: int) -> ir.Module:
    wide, scalar = TensorType((64, 32), "f32"), TensorType((), "f32")
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kind = ir.FunctionType.get([wide.mlir(), scalar.mlir()], [wide.mlir()])
            block = func.FuncOp("f", kind).add_entry_block()
        with ir.InsertionPoint(block):
            x, s = block.arguments
            for _ in range(count // 10):
                y = builder.build("div", [x, builder.splat(2.0, wide)])
                y = builder.transpose(builder.transpose(builder.build("exp", [y]), (1, 0)), (1, 0))
                y = builder.build("mul", [y, builder.broadcast(s, (64, 32), ())])
                r = builder.build("reduce", [y], {"kind": "sum", "dims": (1,)})
                x = builder.build("sub", [y, builder.broadcast(r, (64, 32), (0,))])
            func.ReturnOp([x])
    return module


class _Block(nn.Module):
    """Convolutions of all kinds with what usually stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, stride=2)
        self.pointwise = nn.Conv2d(8, 16, 1)
        self.squeeze = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.relu6(self.depthwise(x)) + 0.5
        x = nn.functional.pad(self.pointwise(x), (1, 0, 0, 1))
        scale = torch.sigmoid(self.squeeze(nn.functional.adaptive_avg_pool2d(x, 1)))
        x = torch.cat([x * scale, x[:, :, 1:, :].flip(2).sum(2, keepdim=True).expand_as(x)], 1)
        return self.head(x.mean((2, 3)))


class _Pooled(nn.Module):
    """Pooling, channels last between convolutions, and an op of PyTorch's, which knows no layout of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.tanh(self.first(x)), 2)
        x = nn.functional.avg_pool2d(self.second(x + 1), 2)
        return nn.functional.interpolate(x, scale_factor=2).flatten(1)


class _Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 4, 3, stride=2)
        self.second = nn.Conv3d(4, 4, (1, 2, 1), dilation=(1, 1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).flatten(1)


def _training_module(model: nn.Module, x: torch.Tensor, classes: int) -> ir.Module:
    from function_trace import trace_graph

    from gflow.lowering import lower

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def build(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x)[:, :classes], y)
        loss.backward()
        return loss

    target = torch.arange(x.shape[0]) % classes
    return lower(trace_graph("g", build, (x, target), {}, {"model": model}, [optimizer]))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (_Block, (2, 3, 8, 8)),
        (_Block, (1, 3, 5, 7)),
        (_Pooled, (2, 3, 10, 10)),
        (_Volume, (2, 2, 7, 7, 7)),
    ],
)
@pytest.mark.parametrize(
    "pipeline", ["gflow-assign-layout", "gflow-simplify,cse,gflow-assign-layout,gflow-simplify,cse"]
)
def test_layout_keeps_results(
    model: type[nn.Module], shape: tuple[int, ...], pipeline: str
) -> None:
    torch.manual_seed(0)
    module = _training_module(model(), torch.randn(shape), 4)
    args = [a.abs() for a in random_args(module, 1)]
    before = run_module(module, args)
    assert all(t.isfinite().all() for t in before)
    run_pipeline(module, f"builtin.module(func.func({pipeline}))", verify_each=True)
    text = str(module)
    assert 'layout = "NC*"' not in text
    _same(before, run_module(module, args), rtol=2e-4)


def test_no_transpose_between_convolutions() -> None:
    """The only transposes of activations are those of the function's own inputs."""
    module = _training_module(_Block(), torch.randn(2, 3, 8, 8), 4)
    run_pipeline(
        module,
        "builtin.module(func.func(gflow-simplify,cse,gflow-assign-layout,gflow-simplify,cse))",
    )
    moved = []
    with module.context:
        for op in module.body.operations[0].regions[0].blocks[0].operations:
            if op.operation.name != "gflow.transpose" or len(op.operands[0].type.shape) != 4:
                continue
            source = op.operands[0].owner
            is_input = isinstance(source, ir.Block)
            if not is_input and source.name != "gflow.convolution_weight_grad":
                moved.append(str(op))
    assert moved == []


def test_layout_is_linear() -> None:
    context = make_context()
    counts = {}
    for depth in (50, 200):
        x_type, w_type = TensorType((1, 4, 8, 8), "f32"), TensorType((4, 4, 3, 3), "f32")
        with context, ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                kind = ir.FunctionType.get([x_type.mlir(), w_type.mlir()], [x_type.mlir()])
                block = func.FuncOp("f", kind).add_entry_block()
            with ir.InsertionPoint(block):
                x, w = block.arguments
                for _ in range(depth):
                    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
                    y = builder.build(
                        "convolution", [x, w], {**attrs, "groups": 1, "layout": "NC*"}
                    )
                    x = builder.build("add", [x, builder.build("tanh", [y])])
                func.ReturnOp([x])
        pipeline = "builtin.module(func.func(gflow-assign-layout))"
        counts[depth] = calls(partial(run_pipeline, module, pipeline))
    assert counts[200] < 4.6 * counts[50]

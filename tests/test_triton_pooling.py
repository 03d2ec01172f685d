"""Pooling as Triton kernels, under the interpreter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from function_trace import trace_graph
from ir_interpreter import DTYPES
from test_triton_indexing import check, op
from torch.nn import functional as F

from gflow import nn
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.program import LaunchStep
from gflow.dialects.types import TensorType
from gflow.lowering import lower
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

Tensor = torch.Tensor

WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "resnet": ((2, 9, 8, 5), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "layout": "N*C"}),
    "first": ((2, 3, 7, 9), {"kernel": (2, 3), "stride": (2, 1), "padding": (0, 1), "layout": "NC*"}),
    "gaps": ((1, 7, 8, 3), {"kernel": (2, 2), "stride": (3, 3), "padding": (0, 0), "layout": "N*C"}),
    "ceil": ((2, 2, 10, 7), {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 1), "ceil_mode": True,
                             "layout": "NC*"}),
    "line": ((3, 11, 4), {"kernel": (4,), "stride": (3,), "padding": (2,), "layout": "N*C"}),
    "volume": ((1, 2, 4, 5, 6), {"kernel": (2, 3, 2), "stride": (1, 2, 2), "padding": (0, 1, 1), "layout": "NC*"}),
    "large": ((1, 2, 12, 12), {"kernel": (7, 7), "stride": (3, 3), "padding": (3, 3), "layout": "NC*"}),
    "shares": ((2, 10, 7, 3), {"size": (3, 4), "layout": "N*C"}),
    "more shares": ((2, 3, 3, 4), {"size": (5, 2), "layout": "NC*"}),
    "nothing": ((0, 3, 4, 4), {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "layout": "NC*"}),
    "dilated": ((1, 2, 9, 11), {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (2, 3),
                                "layout": "NC*"}),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "resnet": {"count_padding": True}, "ceil": {"count_padding": True}, "first": {"divisor": 5},
}  # fmt: skip


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return "x".join([*map(str, shape), dtype])


def special(shape: tuple[int, ...]) -> Tensor:
    """Numbers with many equal ones, NaN, and a plane of negative infinities."""
    x = (torch.randn(shape) * 2).round()
    if x.numel() > 30:
        x.view(-1)[torch.randperm(x.numel())[:6]] = torch.nan
        x[-1] = -torch.inf
    return x


def _result(shape: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    infer = OPS["max_pool"].infer
    assert infer is not None
    (ty,) = infer([TensorType(shape, "f32")], {**attrs, "positions": "none"})
    return ty.shape


def _maxima(
    args: list[ir.Value], attrs: dict[str, Any], shape: tuple[int, ...], positions: str = "plane"
) -> list[ir.Value]:
    y, places = builder.build_op("max_pool", args[:1], {**attrs, "positions": positions}).results
    return [y, places, builder.build("max_pool_grad", [args[1], places], {**attrs, "shape": shape})]


@pytest.mark.parametrize("name", WINDOWS)
def test_pooling(name: str) -> None:
    """Maxima and their gradient, means and theirs."""
    shape, attrs = WINDOWS[name]
    out = _result(shape, attrs)
    means = attrs if "size" in attrs else attrs | OPTIONS.get(name, {})

    def body(args: list[ir.Value]) -> list[ir.Value]:
        found = _maxima(args, attrs, shape)
        if "size" not in attrs:
            found += _maxima(args, attrs, shape, "window")[1:]
        if "dilation" not in attrs:
            found.append(builder.build("avg_pool", args[2:], means))
            found.append(builder.build("avg_pool_grad", args[1:2], {**means, "shape": shape}))
        return found

    args = [special(shape), torch.randn(out), torch.randn(shape)]
    check([_type(tuple(a.shape), "f32") for a in args], body, args)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i32", "f64"])
def test_types(dtype: str) -> None:
    shape, attrs = WINDOWS["resnet"]
    x = special(shape).nan_to_num(3.0).clamp(-9, 9).to(DTYPES[dtype])
    out = _result(shape, attrs)
    if dtype == "i32":
        check([_type(shape, dtype)], op("max_pool", **attrs, positions="plane"), [x])
        return

    def body(args: list[ir.Value]) -> list[ir.Value]:
        means = builder.build("avg_pool_grad", args[1:], {**attrs, "shape": shape})
        return [*_maxima(args, attrs, shape), builder.build("avg_pool", args[:1], attrs), means]

    dy = torch.randn(out).to(DTYPES[dtype])
    check([_type(shape, dtype), _type(out, dtype)], body, [x, dy])


def test_without_positions() -> None:
    shape, attrs = WINDOWS["ceil"]
    check([_type(shape, "f32")], op("max_pool", **attrs, positions="none"), [special(shape)])


def test_views() -> None:
    """Operands where they lie: a transposed input, a broadcast gradient."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        x = builder.transpose(args[0], (0, 3, 1, 2))
        attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "layout": "NC*"}
        y, places = builder.build_op("max_pool", [x], {**attrs, "positions": "plane"}).results
        dy = builder.broadcast(args[1], builder.type_of(y).shape)
        shape = builder.type_of(x).shape
        last = {**attrs, "layout": "N*C", "shape": (2, 6, 5, 3)}
        other = builder.transpose(dy, (0, 2, 3, 1))
        return [
            builder.build("max_pool_grad", [dy, places], {**attrs, "shape": shape}),
            builder.build("avg_pool_grad", [other], last),
        ]

    args = [torch.randn(2, 6, 5, 3), torch.randn(1)]
    check(["2x6x5x3xf32", "1xf32"], body, args)


class Net(torch.nn.Module):
    """A convolution, pooling of several kinds, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv(x).relu(), 3, 2, 1)
        x = F.adaptive_avg_pool2d(F.avg_pool2d(x, 3, 1, 1), (3, 2))
        return self.linear(F.adaptive_max_pool2d(x, 1).flatten(1))


def test_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of a graph are eager's, and nothing runs through PyTorch."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    model = Net()
    ours = copy.deepcopy(model)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = ours
            self.add_optimizer(torch.optim.SGD(ours.parameters(), lr=0.5))

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph = Train()
    graph.config.compile_options = CompileOptions(target="cuda:90")
    x = torch.randn(2, 3, 11, 10)
    found = graph(x)
    loss = model(x).square().mean()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    torch.testing.assert_close(found, loss.detach())
    for a, b in zip(ours.parameters(), model.parameters()):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-4, atol=1e-5)
    assert "gflow.aten" not in graph.ir("planned", generic=True)


def test_inference_on_a_device() -> None:
    """Traced on a GPU, maxima whose positions nothing reads are one kernel, not slices."""
    x = special((2, 3, 9, 8))
    trace = trace_graph("g", lambda x: F.max_pool2d(x, 3, 2, 1), [x], {}, {}, ())
    for call in trace.ops:
        for value in call.results:
            if value is not None:
                value.device = torch.device("cuda")
    program = compile_module(lower(trace), CompileOptions(target="cuda:90"))
    (step,) = program.steps
    assert isinstance(step, LaunchStep)
    assert "positions" not in program.triton[step.kernel].parameters
    (found,) = Executable(program, InterpreterDevice())([x])
    torch.testing.assert_close(found, F.max_pool2d(x, 3, 2, 1), rtol=0, atol=0, equal_nan=True)


def test_kernels_compile() -> None:
    """The first layers of a ResNet at its size: nothing spilled."""
    shape, attrs = (64, 112, 112, 64), WINDOWS["resnet"][1]
    types = [_type(shape, "bf16"), _type(_result(shape, attrs), "bf16")]
    with make_context():
        module = ir.Module.parse(_function(types, lambda args: _maxima(args, attrs, shape)))
        program = compile_module(module, CompileOptions(target="cuda:90"))
    code = compile_kernels([(k, 0) for k in program.triton.values()], 90)
    assert len(code) == 2
    assert not any(c.spills for c in code.values())

"""gflow-join-operand-sums: products sum an operand in their loop over K, as exactly as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from codegen_harness import copies
from ir_interpreter import run_module
from joined_step import Train, gradients
from torch import Tensor, nn
from triton_interpreter import run_program

from gflow.compiler import CompileOptions
from gflow.compiler.driver.compile import compile_module
from gflow.compiler.emit.triton.toolchain.device_code import add_device_code
from gflow.compiler.kernel.selection.gpu.product import contraction
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program

pytest.importorskip("triton")

CONTEXT = make_context()


class Transposed(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2's: its gradient has that of the result as second operand."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


def summing(program: Program) -> list[str]:
    """The names of kernels that sum an operand of a product, or add up such sums."""
    return [k.name for k in program.triton.values() if "ones = tl.full(" in k.source]


def check(model: nn.Module, shape: tuple[int, ...], outputs: int, target: str) -> Program:
    """A step in Triton's interpreter beside eager and float64; its program."""
    dtype = next(model.parameters()).dtype
    x, y = torch.randn(shape).to(dtype), torch.randn(*shape[:-1], outputs).to(dtype)
    exact = gradients(copy.deepcopy(model).double(), x.double(), y.double())
    eager = gradients(copy.deepcopy(model), x, y)
    before = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    graph = Train(model, CompileOptions(target=target))
    graph(x, y)
    unit = torch.finfo(dtype).eps
    for name, want in exact.items():
        found = before[name] - dict(model.named_parameters())[name].detach().double()
        allowed = 2 * (eager[name] - want).abs().max() + 2 * unit * (before[name].abs().max() + 1)
        assert (found - want).abs().max() <= allowed, name
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    program: Program = plan.compiled.program
    return program


@pytest.mark.parametrize("layer", [nn.Linear, Transposed])
@pytest.mark.parametrize(
    ("shape", "outputs", "dtype", "target"),
    [
        ((3, 50, 40), 72, torch.bfloat16, "cuda:90"), ((129, 24), 33, torch.float16, "cuda:80"),
        ((64, 19), 200, torch.bfloat16, "hip:gfx942"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("splits", [1, 3])
def test_gradients_of_biases(
    layer: Any, shape: tuple[int, ...], outputs: int, dtype: torch.dtype, target: str, splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two layers, odd sizes, with and without split-K: neither bias has a kernel of its own."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    monkeypatch.setattr(contraction, "best_splits", lambda *_: splits)
    torch.manual_seed(0)
    middle = 56
    model = nn.Sequential(layer(shape[-1], middle), nn.GELU(), layer(middle, outputs)).to(dtype)
    program = check(model, shape, outputs, target)
    assert summing(program)
    assert 'kind = "column"' not in program.ir


def text(rows: int, k: int, columns: int, operand: int, dtype: str = "bf16") -> str:
    """A product, and the sums of an operand over K, which are multiplied by a vector; both results are read again."""
    x, w = f"tensor<{rows}x{k}xDT>", f"tensor<{k}x{columns}xDT>"
    count = (rows, columns)[operand]
    of, wide = (("%x", x), ("%w", w))[operand]
    c, v = f"tensor<{count}xf32>", f"tensor<{count}xDT>"
    wider = wide.replace("DT", "f32")
    summed = f"""%a = "gflow.convert"({of}) {{dtype = "f32"}} : ({wide}) -> {wider}
      %s = "gflow.reduce"(%a) {{dims = array<i64: {1 - operand}>, kind = "sum"}} : ({wider}) -> {c}"""
    if operand == 0:  # columns of a transposed value
        turned = f"tensor<{k}x{rows}xDT>"
        wider = turned.replace("DT", "f32")
        summed = f"""%t = "gflow.transpose"(%x) {{permutation = array<i64: 1, 0>}} : ({x}) -> {turned}
      %a = "gflow.convert"(%t) {{dtype = "f32"}} : ({turned}) -> {wider}
      %s = "gflow.reduce"(%a) {{dims = array<i64: 0>, kind = "sum"}} : ({wider}) -> {c}"""
    return f"""func.func @f(%x: {x}, %w: {w}, %v: {v}) -> (tensor<{rows}x{columns}xDT>, {c}, {v}) {{
      {summed}
      %u = "gflow.convert"(%v) {{dtype = "f32"}} : ({v}) -> {c}
      %r = "gflow.mul"(%s, %u) : ({c}, {c}) -> {c}
      %h = "gflow.convert"(%r) {{dtype = "DT"}} : ({c}) -> {v}
      %p = "gflow.matmul"(%x, %w) : ({x}, {w}) -> tensor<{rows}x{columns}xDT>
      return %p, %s, %h : tensor<{rows}x{columns}xDT>, {c}, {v}
    }}""".replace("DT", dtype)


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("rows", "k", "columns"), [(65, 130, 300), (300, 64, 33)])
@pytest.mark.parametrize("splits", [1, 2])
def test_sums_of_an_operand(
    rows: int, k: int, columns: int, operand: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a transpose, and of several tiles: each sum is stored once."""
    monkeypatch.setattr(contraction, "best_splits", lambda *_: splits)
    torch.manual_seed(0)
    args = [
        torch.randn(s).bfloat16() for s in ((rows, k), (k, columns), ((rows, columns)[operand],))
    ]
    with CONTEXT:
        program = compile_module(
            ir.Module.parse(text(rows, k, columns, operand)), CompileOptions(target="cuda:90")
        )
        exact = ir.Module.parse(
            text(rows, k, columns, operand, "f64").replace("xf32", "xf64").replace('"f32"', '"f64"')
        )
        want = run_module(exact, [a.double() for a in args])
    assert len(summing(program)) == 1
    assert len(program.steps) == splits
    for w, g, unit in zip(
        want, run_program(program, copies(args)), (1e-2, 1e-6, 1e-2), strict=True
    ):
        torch.testing.assert_close(g.double(), w, rtol=unit, atol=unit * w.abs().max().item())


@pytest.mark.parametrize("operand", [0, 1])
def test_machine_code(operand: int) -> None:
    """Tensor cores compute the sums, too; nothing spills."""
    with CONTEXT:
        module = ir.Module.parse(text(2304, 8192, 768, operand))
        program = compile_module(module, CompileOptions(target="cuda:90"))
    assert summing(program)
    add_device_code(program)
    for key, code in program.device_code.items():
        assert not code.spills, key
        if "matmul" in key and "total" not in key:
            assert any(i.startswith("wgmma.mma_async.m64n16k16.f32") for i in code.instructions)

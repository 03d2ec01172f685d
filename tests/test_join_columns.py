"""gflow-join-columns: products and depthwise convolutions reduce the columns of their result, as exactly as eager."""

from __future__ import annotations

import copy

import pytest
import torch
from codegen_harness import copies
from ir_interpreter import run_module
from torch import Tensor, nn
from triton_interpreter import run_program

import gflow
from gflow.compiler import CompileOptions
from gflow.compiler.driver.compile import compile_module
from gflow.compiler.emit.triton.toolchain.device_code import add_device_code
from gflow.compiler.kernel.selection.gpu.product import contraction
from gflow.compiler.targets import parse_target
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program

pytest.importorskip("triton")

CONTEXT = make_context()


class Residual(nn.Module):
    """An inverted residual: pointwise, depthwise, pointwise, each with a batch norm."""

    def __init__(self, wide: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, wide, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


class Train(gflow.nn.Graph):
    def __init__(self, model: nn.Module, target: str, budget: int = 0) -> None:
        super().__init__()
        self.model = model
        if budget:
            self.config.set_memory_budget(budget)
        self.config.compile_options = CompileOptions(target=target)
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss


def trained(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Parameters and statistics after an eager step, in float64."""
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
    return {n: t.double() for n, t in model.state_dict().items()}


def check(model: nn.Module, x: Tensor, y: Tensor, target: str, budget: int = 0) -> Program:
    """A step in Triton's interpreter beside eager and float64; its program."""
    exact = trained(copy.deepcopy(model).double(), x.double(), y.double())
    eager = trained(copy.deepcopy(model), x, y)
    graph = Train(model, target, budget)
    graph(x, y)
    for name, found in model.state_dict().items():
        want = exact[name]
        allowed = 2 * (eager[name] - want).abs().max() + 2e-6 * (want.abs().max() + 1)
        assert (found.double() - want).abs().max() <= allowed, name
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    program: Program = plan.compiled.program
    return program


def joined(program: Program) -> list[str]:
    """The names of kernels that reduce columns of a contraction's result."""
    names = ("matmul", "depthwise", "total", "convolution")
    found = [k for k in program.triton.values() if k.name.startswith(names)]
    return [k.name for k in found if "gflow.reduce" in k.source]


#: images, height and width: 64 positions, 45 of 64, and 200 of 256
SIZES = [(4, 4, 4), (5, 3, 3), (8, 5, 5)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_batch_norms_of_small_images(
    size: tuple[int, int, int], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the convolutions' kernels, forward and backward, has the sums of a batch norm."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    images, high, wide = size
    model = nn.Sequential(Residual(24, 40), Residual(24, 40))
    program = check(model, *(torch.randn(images, 24, high, wide) for _ in range(2)), target)
    found = joined(program)
    assert sum(name.startswith("depthwise_input_grad") for name in found) == 1
    assert len(found) >= 6, found


def test_under_a_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of joined kernels are recomputed, with and without their convolution."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    model = nn.Sequential(Residual(24, 40), Residual(24, 40))
    program = check(model, *(torch.randn(4, 24, 4, 4) for _ in range(2)), "cuda:90", 100_000)
    assert "gflow.recomputed" in program.ir
    assert joined(program)


def column(rows: int, k: int, columns: int, kind: str = "sum", dtype: str = "f32") -> str:
    """A function: a product less a vector or one of its rows; a reduction of columns, and what follows over them."""
    t, c = f"tensor<{rows}x{columns}xDT>", f"tensor<{columns}xDT>"
    wide = f"shape = array<i64: {rows}, {columns}>"
    row = f"""%m = "gflow.slice"(%p) {{starts = array<i64: 2, 0>, limits = array<i64: 3, {columns}>,
          strides = array<i64: 1, 1>}} : ({t}) -> tensor<1x{columns}xDT>
      %n = "gflow.broadcast"(%m) {{dims = array<i64: 0, 1>, {wide}}} : (tensor<1x{columns}xDT>) -> {t}"""
    bias = f'%n = "gflow.broadcast"(%v) {{dims = array<i64: 1>, {wide}}} : ({c}) -> {t}'
    text = f"""func.func @f(%x: tensor<{rows}x{k}xDT>, %w: tensor<{k}x{columns}xDT>, %v: {c}) -> ({c}, {t}, {t}) {{
      %p = "gflow.matmul"(%x, %w) : (tensor<{rows}x{k}xDT>, tensor<{k}x{columns}xDT>) -> {t}
      {row if kind in ("sum", "max") else bias}
      %d = "gflow.sub"(%p, %n) : ({t}, {t}) -> {t}
      %s = "gflow.reduce"(%d) {{dims = array<i64: 0>, kind = "{kind}"}} : ({t}) -> {c}
      %e = "gflow.broadcast"(%s) {{dims = array<i64: 1>, {wide}}} : ({c}) -> {t}
      %r = "gflow.sub"(%d, %e) : ({t}, {t}) -> {t}
      return %s, %r, %p : {c}, {t}, {t}
    }}"""
    return text.replace("DT", dtype)


@pytest.mark.parametrize(
    ("rows", "k", "columns", "kind", "dtype"),
    [
        (64, 24, 40, "max", "f32"), (37, 30, 33, "min", "f32"), (100, 64, 48, "prod", "bf16"),
        (300, 32, 17, "sum", "f16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("splits", [1, 2])
def test_reductions_of_a_product(
    rows: int, k: int, columns: int, kind: str, dtype: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """With split-K, the kernel that adds up the parts reduces."""
    monkeypatch.setattr(contraction, "best_splits", lambda *_: splits)
    text = column(rows, k, columns, kind, dtype)
    torch.manual_seed(0)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    shapes = (rows, k), (k, columns), (columns,)
    args = [(torch.randn(s) / s[0] ** 0.5).to(kinds[dtype]) for s in shapes]
    with CONTEXT:
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
        exact = ir.Module.parse(column(rows, k, columns, kind, "f64"))
        want = run_module(exact, [a.double() for a in args])
    names = joined(program)
    assert names[-1].startswith("total" if splits > 1 else "matmul")
    assert len(program.steps) == splits
    got = run_program(program, copies(args))
    unit = 2e-6 if dtype == "f32" else 2e-2
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=unit, atol=unit * 4)


@pytest.mark.parametrize(
    ("target", "joins"), [("cuda:90", True), ("cuda:80", True), ("hip:gfx942", False)]
)
def test_tiles_fit_the_device(target: str, joins: bool) -> None:
    """1,024 rows of operands fill more than the 64 KiB that a block of an MI300X has."""
    text = column(1024, 32, 192).replace(" {", ' attributes {gflow.tf32 = ["matmul"]} {', 1)
    with CONTEXT:
        program = compile_module(ir.Module.parse(text), CompileOptions(target=target))
    assert bool(joined(program)) == joins
    add_device_code(program)
    device = parse_target(target).device
    for key, code in program.device_code.items():
        assert code.shared <= device.shared_memory, key
        assert not code.spills, key


def test_what_reads_the_result_elsewhere_stays_apart() -> None:
    """The columns are those of the result's transpose, whose rows no tile has as a whole."""
    t = "tensor<64x64xf32>"
    text = f"""func.func @f(%x: {t}, %w: {t}) -> tensor<64xf32> {{
      %p = "gflow.matmul"(%x, %w) : ({t}, {t}) -> {t}
      %a = "gflow.transpose"(%p) {{permutation = array<i64: 1, 0>}} : ({t}) -> {t}
      %s = "gflow.reduce"(%a) {{dims = array<i64: 0>, kind = "sum"}} : ({t}) -> tensor<64xf32>
      return %s : tensor<64xf32>
    }}"""
    args = [torch.randn(64, 64) for _ in range(2)]
    with CONTEXT:
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
        (want,) = run_module(ir.Module.parse(text), copies(args))
    assert not joined(program)
    torch.testing.assert_close(run_program(program, args)[0], want, rtol=1e-5, atol=1e-4)

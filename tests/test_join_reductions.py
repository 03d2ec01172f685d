"""gflow-join-reductions: columns are summed where rows are walked, and results stay as exact as eager's."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from codegen_harness import Arg, b, make, reduce, spread
from ir_interpreter import DTYPES, run_module
from joined_step import Train, gradients
from torch import Tensor, nn
from triton_interpreter import run_program

from gflow.compiler import CompileOptions
from gflow.compiler.driver.compile import compile_module
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.compiler.kernel.selection.gpu.product import contraction
from gflow.compiler.passes.joining import join_reductions
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.types import type_of

pytest.importorskip("triton")

SMALL = "gflow-join-reductions{least-rows=8 programs=3 shortest=8}"
#: without the pass that sums columns in the products that read them
PIPELINE = re.sub(
    r"gflow-join-operand-sums{[^}]*},gflow-join-reductions{[^}]*}", SMALL, pipeline_for("cuda:90")
)
OPTIONS = CompileOptions(target="cuda:90", pipeline=PIPELINE)
CONTEXT = make_context()


class Block(nn.Module):
    """A norm between products, with what goes around it."""

    def __init__(self, norm: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(width, width), norm, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return h + self.last(self.norm(h))


def updates(graph: Train, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Any]:
    """What a step of size 1 took from the parameters; and the program."""
    before = {n: p.detach().double().clone() for n, p in graph.model.named_parameters()}
    graph(x, y)
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    found = {n: before[n] - p.detach().double() for n, p in graph.model.named_parameters()}
    return found, plan.compiled.program


def check(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """A step beside eager and float64, in Triton's interpreter; its program."""
    for p in model.parameters():  # nothing is 0, 1, or lost when it is rounded
        p.data = (torch.randn(p.shape) * 0.3).to(p.dtype)
    exact = gradients(copy.deepcopy(model).double(), x.double(), y.double())
    eager = gradients(copy.deepcopy(model), x, y)
    found, program = updates(Train(model, OPTIONS), x, y)
    unit = torch.finfo(x.dtype).eps
    for name, want in exact.items():
        scale = want.abs().max()
        allowed = 2 * (eager[name] - want).abs().max() + 4 * unit * (scale + 1)
        assert (found[name] - want).abs().max() <= allowed, name
    return program


CASES = [
    ("layer", nn.LayerNorm(19), (37, 19), torch.float32),
    ("layer", nn.LayerNorm(16), (3, 13, 16), torch.bfloat16),
    ("without bias", nn.LayerNorm(24, bias=False), (9, 24), torch.float32),
    ("rms", nn.RMSNorm(19), (5, 9, 19), torch.float32),
    ("rms", nn.RMSNorm(33), (50, 33), torch.bfloat16),
    ("padded rows", nn.LayerNorm(131), (37, 131), torch.float32),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{str(case[3])[6:]}")
def test_backward_of_a_norm(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    _, norm, shape, dtype = case
    torch.manual_seed(0)
    model = Block(copy.deepcopy(norm), shape[-1]).to(dtype)
    program = check(model, *(torch.randn(shape).to(dtype) for _ in range(2)))
    assert '"gflow.partial_sums"' in program.ir
    sums = [k for k in program.triton.values() if "partial" in k.source and "low =" in k.source]
    assert sums


@pytest.mark.parametrize("case", ["one launch", "split K", "odd"])
def test_tiles_of_a_product_sum_columns(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the first bias. Where K is split, the kernel that adds up the parts sums the columns."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    monkeypatch.setattr(join_reductions, "_PRODUCT_TILE", 64 * 64)
    torch.manual_seed(0)
    width, k, dtype = {
        "one launch": (136, 40, torch.bfloat16),
        "split K": (136, 520, torch.float32),
        "odd": (129, 24, torch.bfloat16),
    }[case]
    if case == "split K":
        monkeypatch.setattr(contraction, "best_splits", lambda p, target: 2 if p.k > 512 else 1)
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, k)).to(dtype)
    model[2].requires_grad_(False)
    program = check(model, torch.randn(100, 16).to(dtype), torch.randn(100, k).to(dtype))
    own = [kernel.source for kernel in program.triton.values() if "_runs" in kernel.source]
    assert len(own) == 1
    assert "BLOCK_M // 64" in own[0]
    assert ("part7 = " in own[0]) == (case == "split K")


def _joined(text: str, options: str = "least-rows=8 programs=3 shortest=2") -> tuple[str, str]:
    """A function with kernels, and what became of it."""
    with CONTEXT:
        module = ir.Module.parse(text)
        run_pipeline(module, "builtin.module(func.func(gflow-fuse))")
        before = str(module)
        run_pipeline(module, f"builtin.module(func.func(gflow-join-reductions{{{options}}}))")
        module.operation.verify()
        return before, str(module)


def _same(before: str, after: str, *shapes: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    args = [torch.randn(s) for s in shapes]
    with CONTEXT:
        want, got = (
            run_module(ir.Module.parse(t), [a.clone() for a in args]) for t in (before, after)
        )
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def _function(lines: str, returned: str, types: str) -> str:
    t, r, c = "tensor<20x4xf32>", "tensor<20xf32>", "tensor<4xf32>"
    body = lines.replace("ROWS", f'{{dims = array<i64: 1>, kind = "sum"}} : ({t}) -> {r}')
    body = body.replace("COLUMNS", f'{{dims = array<i64: 0>, kind = "sum"}} : ({t}) -> {c}')
    over = "{dims = array<i64: DIM>, shape = array<i64: 20, 4>}"
    body = body.replace("ALONG", f"{over.replace('DIM', '0')} : ({r}) -> {t}")
    body = body.replace("DOWN", f"{over.replace('DIM', '1')} : ({c}) -> {t}")
    body = body.replace("WIDE", f": ({t}, {t}) -> {t}")
    return f"""func.func @f(%x: {t}, %y: {t}, %w: tensor<4x4xf32>) -> ({types}) {{
        {body}
        return {returned} : {types}
      }}"""


SOFT = """
    %s = "gflow.reduce"(%x) ROWS
    %b = "gflow.broadcast"(%s) ALONG
    %d = "gflow.sub"(%x, %b) WIDE
"""


def test_columns_of_what_the_rows_give_are_summed() -> None:
    lines = (
        SOFT
        + '%p = "gflow.matmul"(%d, %w) : (tensor<20x4xf32>, tensor<4x4xf32>) -> tensor<20x4xf32>\n'
    )
    lines += '%q = "gflow.mul"(%d, %d) WIDE\n%c = "gflow.reduce"(%q) COLUMNS'
    text = _function(lines, "%p, %c", "tensor<20x4xf32>, tensor<4xf32>")
    before, after = _joined(text)
    assert after.count("gflow.partial_sums") == 1
    _same(before, after, (20, 4), (20, 4), (4, 4))


def test_what_only_the_rows_read_is_not_stored() -> None:
    """%a is computed by the kernel of columns, and read by that of rows."""
    lines = """
    %a = "gflow.add"(%x, %y) WIDE
    %c = "gflow.reduce"(%a) COLUMNS
    %s = "gflow.reduce"(%a) ROWS
    %b = "gflow.broadcast"(%s) ALONG
    %d = "gflow.sub"(%a, %b) WIDE
    """
    text = _function(lines, "%d, %c", "tensor<20x4xf32>, tensor<4xf32>")
    before, after = _joined(text)
    assert after.count("gflow.partial_sums") == 1
    assert after.count('kind = "row"') == 1
    _same(before, after, (20, 4), (20, 4), (4, 4))


def test_sums_that_the_rows_need_stay_apart() -> None:
    """The rows are of %x less the columns' sums: one kernel cannot be both."""
    lines = """
    %c = "gflow.reduce"(%x) COLUMNS
    %k = "gflow.broadcast"(%c) DOWN
    %e = "gflow.sub"(%x, %k) WIDE
    %s = "gflow.reduce"(%e) ROWS
    %b = "gflow.broadcast"(%s) ALONG
    %d = "gflow.mul"(%x, %b) WIDE
    """
    before, after = _joined(_function(lines, "%d", "tensor<20x4xf32>"))
    assert "gflow.partial_sums" not in after
    _same(before, after, (20, 4), (20, 4), (4, 4))


def test_sums_of_one_value_and_rows_of_what_all_share() -> None:
    """%c and %e are sums of the same; %t is the same for each row."""
    lines = (
        SOFT
        + """
    %c = "gflow.reduce"(%d) COLUMNS
    %e = "gflow.reduce"(%d) COLUMNS
    %g = "gflow.reduce"(%y) COLUMNS
    %k = "gflow.broadcast"(%g) DOWN
    %t = "gflow.reduce"(%k) ROWS
    %h = "gflow.broadcast"(%t) ALONG
    %q = "gflow.sub"(%h, %d) WIDE
    %r = "gflow.reduce"(%q) COLUMNS
    """
    )
    text = _function(
        lines, "%q, %c, %e, %r", ", ".join(["tensor<20x4xf32>", *["tensor<4xf32>"] * 3])
    )
    before, after = _joined(text)
    assert after.count("gflow.partial_sums") >= 3
    _same(before, after, (20, 4), (20, 4), (4, 4))
    passes = pipeline_for("cuda:90").split("gflow-schedule")[1]
    with CONTEXT:
        module = ir.Module.parse(after)
        options = CompileOptions(
            target="cuda:90", pipeline=f"builtin.module(func.func(gflow-schedule{passes}"
        )
        args = [torch.randn(20, 4), torch.randn(20, 4), torch.randn(4, 4)]
        want = run_module(ir.Module.parse(before), [a.clone() for a in args])
        got = run_program(compile_module(module, options), args)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def _norm_backward(
    x: ir.Value, g: ir.Value, mean: ir.Value, rstd: ir.Value, weight: ir.Value
) -> list[ir.Value]:
    wide = type_of(x).shape
    x, g = (b("convert", v, dtype="f32") for v in (x, g))
    over = spread(rstd, wide, 0)
    hat = b("mul", b("sub", x, spread(mean, wide, 0)), over)
    d = b("mul", g, spread(weight, wide, 1))
    m1, m2 = (spread(reduce("sum", v, 1), wide, 0) for v in (d, b("mul", d, hat)))
    dx = b("mul", b("sub", b("sub", d, m1), b("mul", hat, m2)), over)
    return [b("convert", dx, dtype="bf16"), reduce("sum", b("mul", g, hat), 0), reduce("sum", g, 0)]


@pytest.mark.parametrize(("width", "arch"), [(768, 80), (2048, 90)])
def test_kernels_at_real_sizes_do_not_spill(width: int, arch: int) -> None:
    shapes = {"x": (8192, width), "g": (8192, width), "m": (8192,), "r": (8192,), "w": (width,)}
    args = []
    for name, shape in shapes.items():
        dtype = "bf16" if name in "xg" else "f32"
        args.append(Arg(shape, dtype, values=torch.empty(1, dtype=DTYPES[dtype]).expand(shape)))
    case = make("norm", args, _norm_backward)
    program = compile_module(case.module, CompileOptions(target=f"cuda:{arch}"))
    assert len(program.steps) == 2
    code = compile_kernels([(k, 0) for k in program.triton.values()], arch)
    assert not any(c.spills for c in code.values())

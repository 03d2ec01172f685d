"""Products of bfloat16 values (Intel AMX, AVX-512), float32 products from them, and the same programs without."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from codegen_harness import CONTEXT, Arg, Case, b, full, make, spread
from test_own_products import LEVELS, PIPELINE, check
from torch import Tensor, nn

import gflow as flow
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.kernel.blocks import AMX_LANES, BF16X6, Blocks, Problem
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.cpu import blocking, products
from gflow.compiler.targets.processors import ANY, PROCESSORS, Processor
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program, processor
from gflow.runtime import Executable

AMX, BF16 = "x86-64-v4+amx", "x86-64-v4+bf16"
pytestmark = pytest.mark.skipif(
    not LEVELS, reason="this processor has no vectors that products are made for"
)


@pytest.fixture(params=[AMX, *LEVELS[-1:]])
def runs_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Programs for AMX, in small blocks, that run on this level."""
    if request.param not in LEVELS:
        pytest.skip("this processor has no AMX")
    monkeypatch.setenv(processor.ISA, request.param)

    def blocks_of(p: Processor, product: Problem, threads: int) -> Blocks:
        tile = (AMX_LANES, AMX_LANES, 64)
        return Blocks(tile, 64, 96, 32, product.batch > 1, precision=BF16X6)

    for module in (blocking, products):
        monkeypatch.setattr(module, "blocks_of", blocks_of)
    return str(request.param)


@pytest.mark.usefixtures("runs_on")
@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [((), 32, 32, 32), ((), 33, 5, 7), ((), 100, 37, 50), ((), 65, 300, 129), ((2, 3), 20, 70, 35)],
)
@pytest.mark.parametrize("transposed", [(False, False), (True, True), (False, True), (True, False)])
def test_products(
    batch: tuple[int, ...], m: int, k: int, n: int, transposed: tuple[bool, bool]
) -> None:
    args = []
    for shape, turned in zip(((*batch, m, k), (*batch, k, n)), transposed):
        rows, columns = shape[-2:]
        outer = [rows * columns * math.prod(batch[i + 1 :]) for i in range(len(batch))]
        args.append(Arg(shape, strides=(*outer, 1, rows) if turned else None))
    check(AMX, args, lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])


@pytest.mark.usefixtures("runs_on")
@pytest.mark.parametrize("k", [40, 170])
def test_what_follows(k: int) -> None:
    """Bias and activation on tiles, after one block of K and after several."""
    m, n = 70, 100
    args = [Arg((m, k)), Arg((k, n)), Arg((n,)), Arg((m, n))]

    def body(x: ir.Value, y: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        made = b("add", b("matmul", x, y), spread(bias, (m, n), 1))
        return [b("add", b("maximum", made, full(0.0, made)), r)]

    check(AMX, args, body, lambda x, y, bias, r: [torch.relu(x @ y + bias) + r])


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The product by a kernel for AMX."""
    values = [Arg(tuple(t.shape), values=t.contiguous()) for t in (x, y)]
    case = make("product", values, lambda x, y: [b("matmul", x, y)])
    with CONTEXT:
        pipeline = PIPELINE.format(isa=AMX)
        options = CompileOptions(pipeline=pipeline, threads=2, blas=False)
        program = compile_module(case.module, options)
    assert f'precision = "{BF16X6}"' in program.ir, program.ir
    (found,) = Executable(program)(case.args)
    return found


@pytest.mark.usefixtures("runs_on")
@pytest.mark.parametrize("apart", [0, 1, 40, 126])
def test_all_magnitudes(apart: int) -> None:
    """Errors are those of float32 from denormal numbers to the largest ones, alone and beside others."""
    generator = torch.Generator().manual_seed(apart)
    k, tile = 96, AMX_LANES
    for exponent in range(-149 + apart // 2, 128 - apart // 2, 6):
        other = max(-140, min(120, -exponent + (3 if exponent % 4 else -30)))
        x, y = torch.randn(tile, k, generator=generator), torch.randn(k, tile, generator=generator)
        spread_of = torch.randint(-apart // 2, apart // 2 + 1, (tile, k), generator=generator)
        x = torch.ldexp(x.double(), spread_of + exponent).float()
        y = torch.ldexp(y.double(), torch.tensor(other)).float()
        x[~x.isfinite()] = 0
        exact, size = x.double() @ y.double(), x.double().abs() @ y.double().abs()
        found = _product(x, y).double()
        # a product that is a denormal number is rounded to a multiple of the least one
        bound = 16 * torch.finfo(torch.float32).eps * size + k * 2.0**-149
        right = (found - exact).abs() <= bound
        right |= (size > torch.finfo(torch.float32).max) & (~found.isfinite())
        assert right.all(), (exponent, other, (found - exact).abs().max(), bound.min())


@pytest.mark.usefixtures("runs_on")
def test_infinities_and_nans() -> None:
    """They spread as in eager mode: to their rows and columns."""
    x, y = torch.randn(70, 130), torch.randn(130, 66)
    x[3, 5], x[40, 100], x[69, 129] = math.inf, -math.inf, math.nan
    y[7, 1], y[100, 65], y[5, 2] = math.nan, math.inf, 0.0
    torch.testing.assert_close(_product(x, y), x @ y, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("runs_on")
def test_integers_are_exact() -> None:
    """Products and sums of whole numbers below 2**24 are exact, as by float32 multiply-adds."""
    x, y = torch.randint(-700, 700, (64, 32)).float(), torch.randint(-700, 700, (32, 64)).float()
    assert torch.equal(_product(x, y), x @ y)
    powers = torch.tensor([2.0**e for e in range(-60, 60)]).repeat(32, 1)
    assert torch.equal(
        _product(powers[:, :1], torch.ones(1, 32) * 3), powers[:, :1].expand(32, 32) * 3
    )


@pytest.fixture(params=[AMX, BF16, *LEVELS[-1:]])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where programs for AMX run."""
    if request.param not in LEVELS:
        pytest.skip("this processor has no such instructions")
    monkeypatch.setenv(processor.ISA, request.param)
    return str(request.param)


def _program_in_halves(case: Case) -> Program:
    with CONTEXT:
        options = CompileOptions(pipeline=PIPELINE.format(isa=AMX), threads=2, blas=True)
        pipeline = str(options.pipeline).replace(" blas=false", "")
        program = compile_module(case.module, replace(options, pipeline=pipeline))
    assert 'precision = "bf16"' in program.ir, program.ir
    return program


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(
    "shape", [(33, 40, 17), (300, 70, 50), (1500, 384, 90), (200, 1300, 70), (1030, 1300, 1030)]
)
@pytest.mark.parametrize("turned", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_halves(shape: tuple[int, int, int], turned: tuple[int, int]) -> None:
    """Products of bfloat16 values, in any layout: operands are read as they are."""
    m, k, n = shape
    args = []
    for (rows, columns), how in zip(((m, k), (k, n)), turned):
        strides = (1, rows) if how else None
        args.append(Arg((rows, columns), "bf16", strides=strides))
    case = make("product", args, lambda x, y: [b("matmul", x, y)])
    program = _program_in_halves(case)
    assert ("widened = array<i64: 2>" in program.ir) == (4 * m * n > ANY.gathered), (
        "rounded on tiles"
    )
    (found,) = Executable(program)(case.args)
    x, y = (a.double() for a in case.args)
    exact = x @ y
    error = (found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 2.0**-8, "it is rounded once"


@pytest.mark.usefixtures("runs_on")
def test_only_bfloat16_is_multiplied_as_such() -> None:
    """In IR that was written by hand, bf16 on float32 operands would round them."""
    case = make("product", [Arg((64, 64)), Arg((64, 64))], lambda x, y: [b("matmul", x, y)])
    with CONTEXT:
        options = CompileOptions(pipeline=PIPELINE.format(isa=AMX), threads=2, blas=False)
        program = compile_module(case.module, options)
        module = ir.Module.parse(program.ir.replace('"bf16x6"', '"bf16"'))
        with pytest.raises(PipelineError, match="multiplies as bfloat16"):
            run_pipeline(module, "builtin.module(func.func(gflow-verify-memory))")


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("k", [70, 1300])
def test_what_follows_halves(k: int) -> None:
    """Bias and activation after the product's rounding, the product itself beside them, heads that lie apart."""
    m, n = 6 * 13, 5 * 32
    args = [Arg((m, k), "bf16"), Arg((n, k), "bf16"), Arg((n,)), Arg((m, n), "bf16")]

    def linear(x: ir.Value, w: ir.Value) -> ir.Value:
        return b("matmul", x, b("transpose", w, permutation=(1, 0)))

    def follow(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        y = b("add", b("convert", linear(x, w), dtype="f32"), spread(bias, (m, n), 1))
        y = b("add", b("maximum", y, full(0.0, y)), b("convert", r, dtype="f32"))
        return [b("convert", y, dtype="bf16"), y]

    def both(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        made = linear(x, w)
        return [b("mul", made, r), made]

    def heads(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        apart = builder.reshape(b("neg", linear(x, w)), (6, 13, 5, 32))
        return [b("transpose", apart, permutation=(0, 2, 1, 3))]

    def exact(x: Tensor, w: Tensor, bias: Tensor, r: Tensor) -> dict[object, list[Tensor]]:
        y = (x @ w.t()).bfloat16().double()
        after = torch.relu(y + bias) + r
        apart = (-y).reshape(6, 13, 5, 32).transpose(1, 2)
        return {follow: [after, after], both: [y * r, y], heads: [apart]}

    for body in (follow, both, heads):
        case = make("product", args, body)
        found = Executable(_program_in_halves(case))(case.args)
        for f, w in zip(found, exact(*(a.double() for a in case.args))[body], strict=True):
            torch.testing.assert_close(
                f.double(), w, rtol=2.0**-7, atol=2.0**-7 * w.abs().max().item()
            )


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("channels", [32, 20])
def test_convolutions_in_halves(channels: int) -> None:
    """With gradients, beside float64; windows are gathered (32 channels) or stored."""
    torch.manual_seed(0)
    module = nn.Conv2d(channels, 40, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, channels, 9, 8).to(memory_format=torch.channels_last)

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = copy.deepcopy(module)
            self.add_optimizer(torch.optim.SGD(self.module.parameters(), lr=1.0))
            self.config.enable_amp(dtype=torch.bfloat16)

        def build(self, x: Tensor) -> Tensor:
            y = self.module(x)
            (y.float().square().mean()).backward()
            return y

    step = Step()
    y = step(x)
    gradient = module.weight.detach() - step.module.weight.detach()
    other, values = copy.deepcopy(module).double(), x.double()
    exact = other(values)
    exact.square().mean().backward()
    for found, wanted in ((y, exact), (gradient, other.weight.grad)):
        error = (found.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert error < 4 * 2.0**-8


def test_dynamic_rows_follow_the_middle_of_the_range() -> None:
    """Tiles have 32 rows, so few rows at most calls are for other kernels."""
    p = PROCESSORS[AMX]
    assert blocking.blocks_of(p, Problem(1024, 768, 768), 1).precision == BF16X6
    assert blocking.blocks_of(p, Problem(1024, 768, 768, usual_rows=256), 1).precision == BF16X6
    few = Problem(1024, 768, 768, usual_rows=32)
    assert blocking.blocks_of(p, few, 1).precision == ""
    assert not blocking.halves_are_faster(p, few)
    assert "(mostly 32)" in str(Contest(few, "k", "k").shorter())


def test_errors_are_below_those_of_the_library(runs_on: str) -> None:
    x, y = torch.randn(64, 2048), torch.randn(2048, 64)
    exact = x.double() @ y.double()
    found, theirs = ((t - exact).square().mean().sqrt() for t in (_product(x, y), x @ y))
    assert found <= theirs * (1.0 if runs_on == AMX else 1.5)

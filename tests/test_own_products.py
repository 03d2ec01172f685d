"""Products of matrices of our own on the CPU: packed panels and register tiles, beside float64."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from codegen_harness import CONTEXT, Arg, b, full, make, spread

import gflow as flow
from gflow.compiler.driver.compile import CompileOptions, compile_module, generate_planned
from gflow.compiler.driver.races import Racing
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.blocks import Blocks, Problem
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.cpu import blocking, products
from gflow.compiler.kernel.selection.cpu.halves import rows_at_a_time
from gflow.compiler.targets.processors import PROCESSORS, Measured, Processor, measured_here
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.program import KernelStep, Program, processor
from gflow.dialects.types import TensorType
from gflow.execution import races
from gflow.runtime import Executable

Tensor = torch.Tensor
LEVELS = [name for name in PROCESSORS if processor.LEVELS[name] <= processor.features()]
pytestmark = pytest.mark.skipif(
    not LEVELS, reason="this processor has no vectors that products are made for"
)

PIPELINE = (
    "builtin.module(func.func(gflow-fuse,gflow-materialize,"
    "gflow-select-kernels{{target=cpu threads=2 blas=false isa={isa}}},gflow-plan-memory))"
)


def program_of(module: ir.Module, isa: str) -> Program:
    """The program of a module whose products are our own."""
    with CONTEXT:
        options = CompileOptions(pipeline=PIPELINE.format(isa=isa), threads=2, blas=False)
        made = compile_module(module, options)
    names = {s.kernel for s in made.steps if isinstance(s, KernelStep)}
    assert "product" in names, names
    return made


def check(
    isa: str,
    args: list[Arg],
    body: Callable[..., list[ir.Value]],
    exact: Callable[..., list[Tensor]],
    tolerance: float = 2e-6,
) -> None:
    """A function of the dialect beside float64, with one thread and with two."""
    case = make("product", args, body)
    run = Executable(program_of(case.module, isa))
    wanted = exact(*(a.double() for a in case.args))
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append([r.clone() for r in run(case.args)])
    finally:
        torch.set_num_threads(threads)
    for one, two, w in zip(*found, wanted, strict=True):
        assert torch.equal(one, two), "the number of threads changes bits"
        assert (one - w).abs().max() <= tolerance * w.abs().max()


def _strides(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...] | None:
    *batch, rows, columns = shape
    if not transposed:
        return None
    inner = (1, rows)
    outer: list[int] = []
    size = rows * columns
    for n in reversed(batch):
        outer.insert(0, size)
        size *= n
    return (*outer, *inner)


@pytest.fixture(params=LEVELS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(processor.ISA, request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [((), 1, 1, 1), ((), 13, 5, 7), ((), 100, 37, 50), ((), 65, 700, 129), ((), 3, 2500, 17), ((), 300, 16, 97),
     ((5,), 20, 33, 18), ((2, 3), 9, 40, 35)],
)  # fmt: skip
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_products(
    isa: str, batch: tuple[int, ...], m: int, k: int, n: int, transposed: tuple[bool, bool]
) -> None:
    shapes = ((*batch, m, k), (*batch, k, n))
    args = [Arg(s, strides=_strides(s, t)) for s, t in zip(shapes, transposed)]
    check(isa, args, lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("rows", [2, 9, 50])
@pytest.mark.parametrize("orders", [("k", "lanes"), ("lanes", "lanes"), ("k", "k")])
def test_reductions_that_vary(rows: int, orders: tuple[str, str]) -> None:
    """One program for every size of K: part of a vector, several blocks; the gradient of a weight, for example."""
    a, b = orders

    class Reduce(flow.nn.Graph):
        def build(self, x: Tensor, y: Tensor) -> Any:
            made = (x.t() if a == "lanes" else x) @ (y.t() if b == "k" else y)
            return made, torch.relu(made + 1)

    graph = Reduce()
    graph.config.compile_options = CompileOptions(blas=False)
    for k in (40, 1, 31, 1000):
        x, y = torch.randn(rows, k), torch.randn(k, 70)
        given = [x.t().contiguous() if a == "lanes" else x, y.t().contiguous() if b == "k" else y]
        if k == 40:
            dims = (int(a == "k"), int(b == "k"))
            given = [flow.dynamic_dim(t, d, max=1000) for t, d in zip(given, dims)]
        made, after = graph(*given)
        wanted = x.double() @ y.double()
        assert (made - wanted).abs().max() <= 2e-6 * wanted.abs().max()
        torch.testing.assert_close(after, torch.relu(made + 1))
    (plan,) = graph._state.plans
    steps = plan.compiled.program.steps
    assert "product" in {s.kernel for s in steps if isinstance(s, KernelStep)}


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 12, 16])
@pytest.mark.parametrize("transposed", [False, True])
def test_few_rows(isa: str, rows: int, transposed: bool) -> None:
    """Operands are read where they lie; what follows runs on strips."""
    k, n = 83, 150
    args = [Arg((rows, k)), Arg((k, n), strides=_strides((k, n), transposed)), Arg((n,))]

    def body(x: ir.Value, y: ir.Value, bias: ir.Value) -> list[ir.Value]:
        made = b("add", b("matmul", x, y), spread(bias, (rows, n), 1))
        return [b("maximum", made, full(0.0, made))]

    check(isa, args, body, lambda x, y, bias: [torch.relu(x @ y + bias)])
    check(isa, args[:2], lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_strips_of_few_rows(isa: str, rows: int) -> None:
    """More columns than a strip has, in several blocks of K, with what follows."""
    k, n = 1003, 2 * blocking.SWEPT + 75
    args = [Arg((rows, k)), Arg((k, n)), Arg((rows, n))]

    def body(x: ir.Value, y: ir.Value, other: ir.Value) -> list[ir.Value]:
        made = b("matmul", x, y)
        return [b("add", b("mul", made, made), other)]

    check(isa, args, body, lambda x, y, other: [(x @ y).square() + other])
    check(isa, args[:2], lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_halves(isa: str, dtype: str) -> None:
    """They are widened some rows at a time, and rounded once."""
    case = make(
        "product", [Arg((500, 60), dtype), Arg((60, 480), dtype)], lambda x, y: [b("matmul", x, y)]
    )
    with CONTEXT:
        pipeline = PIPELINE.format(isa=isa).replace(" blas=false", "")
        program = compile_module(
            case.module, CompileOptions(pipeline=pipeline, threads=2, blas=True)
        )
    assert 'kind = "panels"' in program.ir
    (found,) = Executable(program)(case.args)
    x, y = (a.double() for a in case.args)
    torch.testing.assert_close(found, (x @ y).to(found.dtype), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("inner", "columns"), [(1, 1024), (60, 480)])
def test_chunks_of_halves_have_several_rows(inner: int, columns: int) -> None:
    """The loops that are chosen for chunks fit the last one, too."""
    shapes = [(0, inner), (inner, columns), (0, columns)]
    for rows in range(2, 3000):
        types = [TensorType((n or rows, m), "bf16") for n, m in shapes]
        assert rows % (rows_at_a_time(types) or rows) != 1
    rows = 2 * rows_at_a_time(types) + 1
    x, y = torch.randn(rows, 2 * inner).bfloat16()[:, ::2], torch.randn(inner, columns).bfloat16()
    found = flow.compile(torch.mm)(x, y)
    torch.testing.assert_close(found, torch.mm(x, y), rtol=2e-2, atol=2e-2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as large products have them, for small ones."""

    def blocks_of(p: Processor, product: Problem, threads: int) -> Blocks:
        height, vectors = p.tiles[-1]
        width = 16 * vectors
        return Blocks((height, width, 32), 2 * height, 3 * width, width, product.batch > 1)

    for module in (blocking, products):
        monkeypatch.setattr(module, "blocks_of", blocks_of)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("columns", [70, 200])
def test_blocks(isa: str, columns: int) -> None:
    shapes = [Arg((90, 75)), Arg((75, columns), strides=(1, 75))]
    check(isa, shapes, lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])
    batch = [Arg((3, 30, 75)), Arg((3, 75, columns))]
    check(isa, batch, lambda x, y: [b("matmul", x, y)], lambda x, y: [x @ y])


@pytest.mark.parametrize("blocks", ["as is", "small"])
def test_what_follows(isa: str, blocks: str, request: pytest.FixtureRequest) -> None:
    """Bias, activation and residual; the product itself beside them; heads, whose rows lie apart."""
    if blocks == "small":
        request.getfixturevalue("small")
    m, k, n = 6 * 13, 70, 5 * 32
    args = [Arg((m, k)), Arg((n, k)), Arg((n,)), Arg((m, n))]

    def linear(x: ir.Value, w: ir.Value, bias: ir.Value) -> tuple[ir.Value, ir.Value]:
        made = b("matmul", x, b("transpose", w, permutation=(1, 0)))
        return made, b("add", made, spread(bias, (m, n), 1))

    def residual(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        _, y = linear(x, w, bias)
        return [b("add", b("maximum", y, full(0.0, y)), r)]

    def exact(x: Tensor, w: Tensor, bias: Tensor, r: Tensor) -> list[Tensor]:
        return [torch.relu(x @ w.t() + bias) + r]

    check(isa, args, residual, exact)

    def both(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        made, y = linear(x, w, bias)
        return [b("mul", y, r), made]

    check(isa, args, both, lambda x, w, bias, r: [(x @ w.t() + bias) * r, x @ w.t()])

    def heads(x: ir.Value, w: ir.Value, bias: ir.Value, r: ir.Value) -> list[ir.Value]:
        _, y = linear(x, w, bias)
        apart = builder.reshape(y, (6, 13, 5, 32))
        return [b("transpose", apart, permutation=(0, 2, 1, 3))]

    check(
        isa,
        args,
        heads,
        lambda x, w, bias, r: [(x @ w.t() + bias).reshape(6, 13, 5, 32).transpose(1, 2)],
    )


def test_threads_of_a_product_are_those_of_the_ir(isa: str) -> None:
    case = make("product", [Arg((256, 200)), Arg((200, 300))], lambda x, y: [b("matmul", x, y)])
    program = program_of(case.module, isa)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    assert step.parallel
    edited = program.ir.replace('threads = "all"', 'threads = "one"')
    alone = generate_planned(edited, "cpu", 2)
    (step,) = alone.steps
    assert isinstance(step, KernelStep)
    assert not step.parallel
    torch.testing.assert_close(Executable(alone)(case.args), Executable(program)(case.args))


def test_errors_are_not_larger_than_the_library_s(isa: str) -> None:
    """Of long sums: they are made in parts."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(s, generator=generator) for s in ((24, 6000), (6000, 48)))
    case = make(
        "product",
        [Arg((24, 6000), values=x), Arg((6000, 48), values=y)],
        lambda x, y: [b("matmul", x, y)],
    )
    (found,) = Executable(program_of(case.module, isa))(case.args)
    exact = x.double() @ y.double()
    theirs = (torch.mm(x, y) - exact).square().mean().sqrt()
    assert (found - exact).square().mean().sqrt() <= 1.5 * theirs


@pytest.mark.parametrize("level", PROCESSORS)
@pytest.mark.parametrize("threads", [1, 2, 64])
def test_blocks_are_sound(level: str, threads: int) -> None:
    p = PROCESSORS[level]
    for m, n, k, batch in (
        (1, 1, 1, 1),
        (1024, 384, 1536, 1),
        (7, 8192, 50, 1),
        (100_000, 64, 9, 1),
        (64, 64, 64, 48),
    ):
        found = blocking.blocks_of(p, Problem(m, n, k, batch), threads)
        height, width, kc = found.tile
        assert found.rows % height == found.columns % width == found.across % width == 0
        assert 0 < kc <= p.kc + 16
        assert found.scratch(threads) < 64 * (p.near + p.block + (1 << 20)) * threads
        most = 1 if p.amx is None else p.amx.faster
        assert blocking.share_of_peak(p, Problem(m, n, k, batch), found, threads) <= most


@pytest.mark.parametrize("faster", ["panels", "blas"])
def test_races(isa: str, faster: str) -> None:
    """What is measured to be faster is written into the IR, whatever the model says."""
    asked: list[str] = []

    def measure(what: str, programs: Callable[[], Mapping[str, Program]]) -> dict[str, float]:
        asked.append(what)
        values = [torch.randn(a.type.shape) for a in next(iter(programs().values())).arguments]
        found = [Executable(program)(values)[0] for program in programs().values()]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)
        return {name: 1.0 + (name != faster) for name in programs()}

    case = make("product", [Arg((512, 200)), Arg((200, 300)), Arg((300,))], lambda x, y, z: [
        b("add", b("matmul", x, y), spread(z, (512, 300), 1))])  # fmt: skip
    pipeline = PIPELINE.format(isa=isa).replace(" blas=false", "")
    options = CompileOptions(
        pipeline=pipeline, threads=2, blas=True, racing=Racing(measure, "here")
    )
    with CONTEXT:
        program = compile_module(case.module, options)
    assert len(asked) == 1
    assert f'kind = "{faster}"' in program.ir
    assert 'tuned = "here"' in program.ir
    (race,) = program.races
    assert race.label.startswith("fused")
    assert next(iter(race.seconds)) == {"panels": "own", "blas": "BLAS"}[faster]


@pytest.mark.parametrize(("budget", "kind"), [(1 << 10, "blas"), (1 << 24, "panels")])
def test_races_keep_a_memory_budget(isa: str, budget: int, kind: str) -> None:
    """The faster way is taken if the scratch that it needs fits the budget, too."""
    case = make("product", [Arg((1000, 1000)), Arg((1000, 24))], lambda x, y: [b("matmul", x, y)])
    pipeline = PIPELINE.format(isa=isa).replace(" blas=false", "")
    limited = f"gflow-rematerialize{{budget={budget} scratch=cpu}},gflow-select-kernels"
    options = CompileOptions(
        pipeline=pipeline.replace("gflow-select-kernels", limited), threads=2, blas=True,
        racing=Racing(lambda what, programs: {"panels": 1.0, "blas": 2.0}, "here"),
    )  # fmt: skip
    with CONTEXT:
        program = compile_module(case.module, options)
    assert len(program.races) == 1
    assert f'kind = "{kind}"' in program.ir
    assert program.arena_bytes <= budget


def test_a_race_that_other_work_disturbs(isa: str) -> None:
    """The model's choice stays, and the program says so."""
    case = make("product", [Arg((512, 200)), Arg((200, 300))], lambda x, y: [b("matmul", x, y)])
    options = CompileOptions(
        pipeline=PIPELINE.format(isa=isa).replace(" blas=false", ""), threads=2, blas=True,
        racing=Racing(lambda what, programs: {}, "here"),
    )  # fmt: skip
    with CONTEXT:
        program = compile_module(case.module, options)
        chosen = compile_module(case.module, replace(options, racing=None))
    assert "tuned" not in program.ir
    assert re.findall('kind = "[a-z]+"', program.ir) == re.findall('kind = "[a-z]+"', chosen.ir)
    (race,) = program.races
    assert race.seconds == {}


def test_runs_count_in_which_threads_have_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's time is taken where the system tells of no waiting in it."""
    waits = itertools.count(0, 10**10)  # all runs are disturbed
    case = make("product", [Arg((64, 64)), Arg((64, 64))], lambda x, y: [b("matmul", x, y)])
    with CONTEXT:
        program = compile_module(case.module, CompileOptions(threads=1, blas=True))
    monkeypatch.setattr(races, "_waits", lambda: {"1": next(waits), "2": 0})
    assert races._run({"one": program, "other": program}) == {}
    monkeypatch.setattr(races, "_waits", dict)  # a system that does not tell
    assert all(0 < t < 1 for t in races._run({"one": program, "other": program}).values())
    assert races.waited_for_cores({"1": 5, "2": 7}, {"1": 6, "2": 9, "3": 10**9}) == 3e-9


def test_a_busy_machine_runs_few_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """After races in a row without an answer a compilation runs no more; known answers still count."""
    run: list[str] = []

    def answer(ways: Mapping[str, Program]) -> dict[str, float]:
        run.append(next(iter(ways)))
        return {run[-1]: 1.0} if run[-1] == "quiet" else {}

    monkeypatch.setattr(races, "_run", answer)
    monkeypatch.setattr(races, "_known", {})
    monkeypatch.setattr(races.disk, "directory", lambda: None)
    here = races.Races()
    found = [here.measure(f"{n} {way}", lambda way=way: {way: None}) for n, way in enumerate(
        ["busy", "busy", "quiet", "busy", "busy", "busy", "quiet"])]  # fmt: skip
    assert run == ["busy", "busy", "quiet", "busy", "busy", "busy"]
    assert [bool(f) for f in found] == [False, False, True, False, False, False, False]
    assert here.measure("2 quiet", dict) == {"quiet": 1.0}
    here.prepare([("7 new", lambda: pytest.fail("compiled, though it will not run"))])
    assert races.Races().measure("6 quiet", lambda: {"quiet": None}) == {"quiet": 1.0}


@pytest.mark.parametrize(
    ("ratio", "measured", "kind"),
    [(4.0, 1, "panels"), (0.2, 1, "blas"), (1.5, 2, "panels"), (1.0, 4, "panels")],
)
def test_measured_products_decide_alike_ones(
    isa: str, ratio: float, measured: int, kind: str
) -> None:
    """Races correct the model; a product that it is sure of then is not measured. ratio: of times, BLAS over own."""
    asked: list[str] = []
    ready: list[str] = []

    def measure(what: str, programs: Callable[[], Mapping[str, Program]]) -> dict[str, float]:
        asked.append(what)
        return {"panels": 1.0, "blas": ratio}

    sizes = (320, 256, 224, 208)
    case = make("product", [Arg((512, 200)), *(Arg((200, n)) for n in sizes)], lambda x, *ys: [
        b("matmul", x, y) for y in ys])  # fmt: skip
    options = CompileOptions(
        pipeline=PIPELINE.format(isa=isa).replace(" blas=false", ""),
        threads=2,
        blas=True,
        racing=Racing(measure, "here", lambda races: ready.extend(what for what, _ in races)),
    )
    with CONTEXT:
        program = compile_module(case.module, options)
    assert len(asked) == len(program.races) == measured
    assert asked == ready[:measured], "what runs is prepared before"
    assert "x320 " in asked[0], "the largest is measured first"
    assert program.ir.count(f'kind = "{kind}"') == program.ir.count('tuned = "here"') == len(sizes)


@pytest.mark.parametrize(
    ("products", "measured", "kind"),
    [((2.0, 2.0), 0, "panels"), ((0.2, 0.3), 0, "blas"), ((0.2, 2.0), 1, "panels")],
)
def test_processors_of_the_table_measure_what_it_leaves_open(
    isa: str, products: tuple[float, float], measured: int, kind: str
) -> None:
    asked: list[str] = []

    def measure(what: str, programs: Callable[[], Mapping[str, Program]]) -> dict[str, float]:
        asked.append(what)
        return {"panels": 1.0, "blas": 2.0}

    case = make("product", [Arg((512, 200)), Arg((200, 320))], lambda x, y: [b("matmul", x, y)])
    none: frozenset[str] = frozenset()
    row = Measured("GenuineIntel", 6, frozenset({1}), isa, 2, products, none, none, products)
    options = CompileOptions(
        pipeline=PIPELINE.format(isa=isa).replace(" blas=false", ""), threads=2, blas=True,
        racing=Racing(measure, "here", known=lambda level, threads: row),
    )  # fmt: skip
    with CONTEXT:
        program = compile_module(case.module, options)
    assert len(asked) == len(program.races) == measured
    assert f'kind = "{kind}"' in program.ir


@pytest.mark.parametrize(
    ("rows", "ratio", "kind"), [(64, 3.0, "panels"), (64, 0.3, "blas"), (8, 3.0, "blas")]
)
def test_small_products_follow_the_table(isa: str, rows: int, ratio: float, kind: str) -> None:
    case = make("product", [Arg((rows, 64)), Arg((64, 64))], lambda x, y: [b("matmul", x, y)])
    row = Measured(
        "GenuineIntel",
        6,
        frozenset(),
        isa,
        2,
        (ratio, ratio),
        frozenset({"k"}),
        frozenset(),
        (ratio, ratio),
    )
    options = CompileOptions(
        pipeline=PIPELINE.format(isa=isa).replace(" blas=false", ""), threads=2, blas=True,
        racing=Racing(lambda what, programs: pytest.fail("raced"), "here", known=lambda level, threads: row),
    )  # fmt: skip
    with CONTEXT:
        program = compile_module(case.module, options)
    assert f'kind = "{kind}"' in program.ir


def test_rows_of_the_table_are_for_their_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "identity", lambda: ("GenuineIntel", 6, 207))
    assert measured_here("x86-64-v4", 2) is not None
    assert measured_here("x86-64-v4", 64) is None, "more threads than were measured"
    assert measured_here("x86-64-v3", 2) is None
    monkeypatch.setattr(processor, "identity", lambda: ("GenuineIntel", 6, 85))
    assert measured_here("x86-64-v4", 2) is None
    monkeypatch.setattr(processor, "identity", lambda: ("AuthenticAMD", 26, 2))
    assert measured_here("x86-64-v4", 1) is not None


def test_small_products_are_not_raced() -> None:
    assert not Contest(Problem(64, 64, 64), "k", "lanes").worth_while
    long = Contest(Problem(100_000, 768, 3072), "k", "lanes")
    assert long.worth_while
    short = long.shorter().product
    assert short.rows * short.columns * short.k <= 1 << 27


def test_edited_choices_that_no_code_follows() -> None:
    for tile, block in (
        ((8, 40, 64), (8, 40, 40)),
        ((8, 48, 64), (12, 48, 48)),
        ((16, 48, 64), (16, 48, 48)),
    ):
        with pytest.raises(
            CannotLower, match="has a blocking that code generation does not support"
        ):
            Choice("panels", tile=tile, block=block).blocks()


@pytest.mark.parametrize(
    ("rows", "k", "columns"), [(1, 1, 9), (2, 1, 2), (1, 7, 1), (4, 3, 1), (3, 2, 5)]
)
def test_few_rows_of_operands_with_gaps(rows: int, k: int, columns: int) -> None:
    """No stride of B is 1 where it has one row or column, whose stride is never taken."""
    product = flow.compile(torch.matmul, dynamic=False)
    wide, high = torch.randn(k, 3 * columns)[:, ::3], torch.randn(5 * columns, k)[::5].t()
    for right in (wide, high, torch.randn(2 * k, 3 * columns)[::2, ::3]):
        for left in (
            torch.randn(rows, k),
            torch.randn(k, rows).t(),
            torch.randn(rows, 3 * k)[:, ::3],
        ):
            torch.testing.assert_close(product(left, right), left @ right)

"""Fused regions as Triton kernels, in Triton's interpreter, against the reference interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import test_codegen_elementwise as elementwise
import test_codegen_random as random_regions
import test_codegen_reductions as reductions
import torch
from codegen_harness import FLOATS, INTEGERS, Arg, Case, b, copies, full, make, reduce, spread
from tolerance import tolerances
from triton_harness import compile_case, run_cases
from triton_interpreter import run_program

from gflow.compiler.kernel.selection.gpu.region import split_reductions, tiling
from gflow.dialects import builder
from gflow.dialects.mlir import ir


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are long, and reductions worth sharing, at sizes that the interpreter can do."""
    monkeypatch.setattr(tiling, "MOST_PERSISTENT", 64)
    monkeypatch.setattr(tiling, "MOST_HELD", 0)
    monkeypatch.setattr(split_reductions, "_LEAST", 64)
    monkeypatch.setattr(split_reductions, "_PIECE", 64)
    monkeypatch.setattr(split_reductions, "_STEPS", 0)


def kernels(case: Case) -> int:
    return len(compile_case(case).triton)


# -- elementwise


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_every_op(dtype: str) -> None:
    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        out = [b(name, x) for name in elementwise._ops(dtype, 1)]
        return out + [b(name, x, y) for name in elementwise._ops(dtype, 2)]

    tolerance = elementwise._tolerance(dtype)
    shapes = [(), (0,), (3, 5, 67)]
    run_cases([make(f"{s}", [Arg(s, dtype), Arg(s, dtype)], body, **tolerance) for s in shapes])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_converts_compares_selects(dtype: str) -> None:
    predicates = ("eq", "ne", "lt", "le", "gt", "ge")

    def body(x: ir.Value, y: ir.Value, p: ir.Value) -> list[ir.Value]:
        magnitude = b("abs", x) if dtype in FLOATS else x
        out = [b("convert", magnitude, dtype=d) for d in (*FLOATS, *INTEGERS, "i1") if d != dtype]
        out += [b("compare", x, other, predicate=q) for q in predicates for other in (x, y)]
        return [*out, b("select", p, x, y), b("select", p, full(1, x), x)]

    args = [Arg((300,), dtype), Arg((300,), dtype), Arg((300,), "i1")]
    run_cases([make(dtype, args, body)])


def _in_triton(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    """The cases of a test of the CPU's kernels, run here."""
    monkeypatch.setattr(module, "run_cases", lambda cases, **given: run_cases(cases))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, elementwise)
    elementwise.test_nan_and_infinity(dtype)
    elementwise.test_float_powers(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_edges(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, elementwise)
    elementwise.test_integer_edges(dtype)
    elementwise.test_integer_powers(dtype)


def _mixed(x: ir.Value, y: ir.Value) -> list[ir.Value]:
    return [b("sub", b("mul", x, y), y), b("maximum", x, y)]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_strides(dtype: str) -> None:
    cases = []
    for shape in [(5, 67), (70, 33), (2, 33, 5, 7)]:
        layouts = elementwise._strides(shape)
        for s, t in [*itertools.product(layouts[:1], layouts), (layouts[1], layouts[2])]:
            cases.append(make(f"{s} {t}", [Arg(shape, dtype, s), Arg(shape, dtype, t)], _mixed))
    run_cases(cases if dtype == "f32" else cases[::3])


def test_views_into_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, elementwise)
    elementwise.test_views_into_kernels()


# -- reductions


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_every_kind(dtype: str) -> None:
    shapes = [(1,), (4, 19), (3, 5, 37), (2, 3, 4, 18)] if dtype == "f32" else [(3, 5, 37)]
    subsets = [(s, d) for s in shapes for d in reductions._subsets(len(s))]
    run_cases([reductions._case("small", s, dtype, d) for s, d in subsets])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "i1"])
@pytest.mark.usefixtures("small_tiles")
def test_shared_by_programs(dtype: str) -> None:
    shapes = [(6003,), (7, 301), (301, 7), (2, 203, 3)]
    subsets = [(s, d) for s in shapes for d in reductions._subsets(len(s))]
    run_cases([reductions._case("long", s, dtype, d) for s, d in subsets])


@pytest.mark.parametrize("dtype", ["f32", "i32", "i1"])
def test_over_nothing(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, reductions)
    reductions.test_over_nothing(dtype)


@pytest.mark.parametrize("shape", [(3, 21), (40, 40)])
def test_nan_wins(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, reductions)
    reductions.test_nan_wins(shape)


# -- regions of networks


def _regions() -> list[Case]:
    close = {"rtol": 1e-4, "atol": 1e-4}
    cases = []
    for shape in [(1, 1), (2, 3, 4, 33), (2, 300)]:
        for dtype in FLOATS if shape[-1] == 33 else ("f32",):
            near = tolerances(dtype, 2)
            cases += [
                make(
                    f"softmax {dtype} {shape}",
                    [Arg(shape, dtype)],
                    lambda x, log=log: [reductions._softmax(x, log)],
                    **near,
                )
                for log in (False, True)
            ]
        args = [Arg(shape), Arg(shape[-1:]), Arg(shape[-1:]), Arg(shape)]
        cases.append(make(f"layer norm {shape}", args, reductions._layer_norm, **close))
    shape = (3, 33, 4, 17)
    for channel, strides in itertools.product((1, 3), (None, (33 * 4 * 17, 1, 33 * 17, 33))):
        c = (shape[channel],)
        args = [Arg(shape, strides=strides), Arg(c), Arg(c), Arg(shape, strides=strides)]
        name = f"batch norm {channel} {strides}"
        cases.append(make(name, args, reductions._batch_norm(channel), alias={1: 2}, **close))
    shape = (24, 2, 40)
    cases.append(
        make("around a pivot", [Arg(shape), Arg(shape[2:])], _around_a_pivot, alias={1: 1}, **close)
    )
    return cases


def _around_a_pivot(x: ir.Value, running: ir.Value) -> list[ir.Value]:
    """Centered and scaled columns; their sums are taken around the mean of two rows of the same buffer."""
    shape = builder.type_of(x).shape
    x = b("tanh", b("transpose", b("transpose", x, permutation=(1, 0, 2)), permutation=(1, 0, 2)))
    ends = ((0, 0, 0), (1, 1, shape[2])), ((12, 1, 0), (13, 2, shape[2]))
    rows = [b("slice", x, starts=at, limits=to, strides=(1, 1, 1)) for at, to in ends]
    pivot = b("reshape", b("add", *rows), shape=shape[2:])
    near = b("sub", x, spread(pivot, shape, 2))
    mean, square = (reduce("sum", v, 0, 1) for v in (near, b("mul", near, near)))
    scale = b("rsqrt", b("add", b("abs", square), full(1, square)))
    y = b("mul", b("sub", near, spread(mean, shape, 2)), spread(scale, shape, 2))
    return [b("exp", y), b("add", running, b("add", pivot, mean))]


def test_norms_and_softmax() -> None:
    run_cases(_regions())


@pytest.mark.parametrize("rows", [1024, 1025])
def test_columns_are_held(rows: int) -> None:
    """A short column is read once, and its sums are in float64, as those of a loop."""

    def body(x: ir.Value) -> list[ir.Value]:
        total = b("reduce", x, dims=(0,), kind="sum", dtype="f64")
        mean = b("convert", b("mul", total, full(1 / rows, total)), dtype="f32")
        return [b("sub", x, spread(mean, (rows, 20), 1)), b("sub", total, full(rows, total))]

    case = make(f"centered columns {rows}", [Arg((rows, 20))], body)
    case.args[0] += 1000
    program = compile_case(case)
    source = "".join(kernel.source for kernel in program.triton.values())
    assert ("for rows_start" in source) == (rows > tiling.MOST_HELD)
    _, found = run_program(program, copies(case.args))
    torch.testing.assert_close(found, case.args[0].double().sum(0) - rows, rtol=1e-14, atol=0)


@pytest.mark.parametrize("width", [4096, 4001, 104])
def test_rows_are_summed_in_float64(width: int) -> None:
    """A row that a program holds loses no term, whether its length is the tile's or not, and alone or with others."""

    def body(x: ir.Value) -> list[ir.Value]:
        total = b("reduce", x, dims=(1,), kind="sum", dtype="f64")
        return [b("sub", x, spread(b("convert", total, dtype="f32"), (8, width), 0)), total]

    case = make(f"rows of {width}", [Arg((8, width))], body)
    x = case.args[0]
    x[:], x[:, 0], x[:, 1:8] = (
        1,
        2.0**24,
        0,
    )  # float32 loses each 1 that is added to the first element
    x[:, -1] = 0.5
    _, found = run_program(compile_case(case), copies(case.args))
    torch.testing.assert_close(found, x.double().sum(1), rtol=0, atol=0)


@pytest.mark.usefixtures("small_tiles")
def test_norms_and_softmax_in_pieces() -> None:
    """Two levels of reductions, each of them shared."""
    run_cases(_regions())


@pytest.mark.parametrize("classes", [2, 100])
def test_cross_entropy(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, reductions)
    reductions.test_cross_entropy(classes)


def test_mixed_types_around_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_triton(monkeypatch, reductions)
    reductions.test_mixed_types_around_a_reduction()


def _region_cases(first: int, last: int) -> list[Case]:
    small = [s for s in random_regions.SPACES if torch.Size(s).numel() < 10000]
    cases = []
    for seed in range(first, last):
        grower = random_regions._Grower(seed, small[seed % len(small)])
        name = f"seed {seed} {grower.space} over {grower.reduced}"
        case = make(name, grower.arguments(), grower.body, seed=seed, rtol=1e-2, atol=2e-2)
        cases.append(case)
    return cases


def test_random_regions() -> None:
    run_cases(_region_cases(0, 18))


@pytest.mark.usefixtures("small_tiles")
def test_random_regions_in_pieces() -> None:
    run_cases(_region_cases(30, 48))


# -- random numbers


def _draws(shape: tuple[int, ...], kind: str, dtype: str) -> Callable[..., list[ir.Value]]:
    def body(state: ir.Value, x: ir.Value) -> list[ir.Value]:
        given = b("random", state, kind=kind, stream=3, shape=shape, dtype=dtype)
        turned = b("transpose", given, permutation=tuple(reversed(range(len(shape)))))
        other = b("random", state, kind=kind, stream=1 << 20, shape=shape, dtype=dtype)
        if kind == "bits":
            return [given, turned, b("xor", given, other)]
        return [given, turned, b("add", b("convert", other, dtype="f32"), x)]

    return body


STATE = Arg((2,), "i64", values=torch.tensor([0x123456789ABCDEF, 7]))


@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
def test_random_numbers(kind: str) -> None:
    """In fours where neighbours lie in a row, one by one elsewhere; the numbers are the same."""
    cases = []
    types = ("i64", "i32", "ui8") if kind == "bits" else ("f32", "f16", "f64")
    close = {} if kind != "normal" else {"rtol": 1e-4, "atol": 1e-5}
    for shape, dtype in itertools.product([(), (7,), (1000,), (5, 64), (33, 7), (3, 4, 12)], types):
        args = [STATE, Arg(shape)]
        cases.append(make(f"{kind} {dtype} {shape}", args, _draws(shape, kind, dtype), **close))
    run_cases(cases)


def test_dropout_in_a_row_kernel() -> None:
    """A mask drawn where a softmax is computed, and again where its gradient is."""

    def body(state: ir.Value, x: ir.Value, g: ir.Value) -> list[ir.Value]:
        shape = builder.type_of(x).shape
        u = b("random", state, kind="uniform", stream=5, shape=shape, dtype="f32")
        keep = b("compare", u, full(0.3, u), predicate="ge")
        y = reductions._softmax(x, False)
        dropped = b("select", keep, b("mul", y, full(1 / 0.7, y)), full(0, y))
        back = b("select", keep, g, full(0, g))
        inner = reduce("sum", b("mul", back, y), len(shape) - 1)
        return [dropped, b("mul", y, b("sub", back, spread(inner, shape, *range(len(shape) - 1))))]

    run_cases(
        [
            make(f"{s}", [STATE, Arg(s), Arg(s)], body, rtol=1e-5, atol=1e-6)
            for s in [(6, 64), (3, 37)]
        ]
    )


# -- movement


def test_movement() -> None:
    def body(x: ir.Value, y: ir.Value, zero: ir.Value) -> list[ir.Value]:
        n, m = builder.type_of(x).shape
        return [
            b("pad", x, zero, low=(1, 2), high=(0, 3)),
            b("concatenate", x, y, dim=1),
            b("reverse", x, dims=(0, 1)),
            b("iota", shape=(n, m), dim=1, dtype="f32"),
            b("iota", shape=(n, m), dim=0, dtype="i64"),
            b("transpose", x, permutation=(1, 0)),
        ]

    for dtype in ("f32", "i8", "i1"):
        shapes = [((5, 67), (5, 3)), ((64, 64), (64, 32)), ((0, 4), (0, 2))]
        run_cases(
            [make(f"{s}", [Arg(s, dtype), Arg(t, dtype), Arg((), dtype)], body) for s, t in shapes]
        )


# -- what is shared


def test_layers_share_kernels() -> None:
    """Sizes, strides and constants are no part of a kernel."""

    def body(*args: ir.Value) -> list[ir.Value]:
        out = []
        for i, x in enumerate(args):
            y = b("mul", x, full(0.1 * (i + 3), x))
            out += [b("tanh", y), reduce("sum", x, 0)]
        return out

    case = make("layers", [Arg((1024, 64 * n)) for n in (1, 2, 3, 5)], body)
    names = {name.rsplit("_", 1)[0] for name in compile_case(case).triton}
    assert kernels(case) <= len(names) + 2, list(compile_case(case).triton)


def test_updates_in_place() -> None:
    """An optimizer's update writes over what it reads."""

    def body(w: ir.Value, m: ir.Value, g: ir.Value, rate: ir.Value) -> list[ir.Value]:
        momentum = b("add", b("mul", m, full(0.9, m)), g)
        step = b(
            "broadcast", b("convert", rate, dtype="f32"), shape=builder.type_of(w).shape, dims=()
        )
        return [b("sub", w, b("mul", momentum, step)), momentum]

    cases = []
    for shape in [(3, 5), (1000,), (4, 33, 2)]:
        args = [Arg(shape), Arg(shape), Arg(shape), Arg((), "f64")]
        cases.append(make(f"{shape}", args, body, alias={0: 0, 1: 1}))
    run_cases(cases)

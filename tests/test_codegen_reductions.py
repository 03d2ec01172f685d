"""Reductions and what fuses around them as machine code, against the interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
from codegen_harness import FLOATS, INTEGERS, Arg, Case, b, full, make, reduce, run_cases, spread
from ir_interpreter import DTYPES
from tolerance import tolerances

from gflow.dialects import builder
from gflow.dialects.mlir import ir


def _subsets(rank: int) -> list[tuple[int, ...]]:
    return [s for n in range(1, rank + 1) for s in itertools.combinations(range(rank), n)]


def _kinds(dtype: str) -> tuple[str, ...]:
    return ("any", "all") if dtype == "i1" else ("sum", "prod", "max", "min")


def _near_one(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Values whose sums and products stay in range."""
    generator = torch.Generator().manual_seed(len(shape))
    if dtype == "i1":
        return torch.rand(shape, generator=generator) < 0.5
    if dtype in FLOATS:
        wide = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (wide * 0.2 + 0.9).to(DTYPES[dtype])
    low = 0 if dtype.startswith("u") else -9
    return torch.randint(low, 10, shape, generator=generator).to(DTYPES[dtype])


def _case(name: str, shape: tuple[int, ...], dtype: str, dims: tuple[int, ...],
          strides: tuple[int, ...] | None = None) -> Case:  # fmt: skip
    def body(x: ir.Value) -> list[ir.Value]:
        return [reduce(kind, x, *dims) for kind in _kinds(dtype)]

    arg = Arg(shape, dtype, strides, _near_one(shape, dtype))
    return make(f"{name} {dtype}{list(shape)} over {dims}", [arg], body, **tolerances(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_every_kind_over_every_subset(dtype: str) -> None:
    shapes = [(5,), (1,), (1, 3, 1), (4, 19), (3, 5, 37), (2, 3, 4, 18)]
    if dtype in ("f32", "i64"):
        shapes += [(2, 1, 3, 2, 5), (2, 3, 2, 3, 2, 3)]
    run_cases([_case("small", s, dtype, d) for s in shapes for d in _subsets(len(s))])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "i1"])
def test_shared_among_threads(dtype: str) -> None:
    """Large enough for threads, blocks and unrolled columns; few and many pieces."""
    shapes = [(100003,), (7, 9001), (9001, 7), (2, 5003, 3), (3, 70, 301), (300, 130), (130, 300)]
    cases = [_case("large", s, dtype, d) for s in shapes for d in _subsets(len(s))]
    run_cases(cases, threads=(1, 2), repeat=True)


def test_blocked_sums_are_accurate() -> None:
    """A sum of a million equal numbers is right to the last digits in every direction."""
    for shape, dims in [((1 << 20,), (0,)), ((1 << 16, 16), (0,)), ((4, 1 << 18), (1,))]:
        arg = Arg(shape, values=torch.full(shape, 0.1))
        case = make("blocked", [arg], lambda x, d=dims: [reduce("sum", x, *d)], rtol=1, atol=1)
        got = run_cases([case], threads=(1, 2))[0][0]
        count = arg.values.numel() // max(got.numel(), 1)
        want = torch.full_like(got, float(torch.tensor(0.1)) * count)
        torch.testing.assert_close(got, want, rtol=4e-6, atol=0)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i16"])
def test_strided_operands(dtype: str) -> None:
    shape = (6, 5, 37)
    layouts = [(1, 6, 30), (185, 1, 5), (37, 222, 1), (400, 80, 2), (0, 37, 1), (37, 0, 1), (5, 1, 0),
               (0, 0, 0)]  # fmt: skip
    cases = [_case("strided", shape, dtype, d, s) for s in layouts for d in _subsets(3)]
    run_cases(cases)


@pytest.mark.parametrize("dtype", ["f32", "i32", "i1"])
def test_over_nothing(dtype: str) -> None:
    kinds = ("any", "all") if dtype == "i1" else ("sum", "prod")
    cases = []
    for shape, dims in [
        ((0,), (0,)),
        ((3, 0), (1,)),
        ((0, 40), (0,)),
        ((0, 40), (1,)),
        ((2, 0, 5), (0, 1)),
    ]:

        def body(x: ir.Value, dims: tuple[int, ...] = dims) -> list[ir.Value]:
            return [reduce(kind, x, *dims) for kind in kinds]

        cases.append(make(f"{shape} {dims}", [Arg(shape, dtype)], body))
    run_cases(cases)


@pytest.mark.parametrize("shape", [(3, 21), (21, 3), (40, 40), (9, 5000)])
def test_nan_wins(shape: tuple[int, ...]) -> None:
    """max and min of NaN are NaN wherever it stands, of infinities infinite, in tails too."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator)
    x[0, -1] = float("nan")
    x[1, 0] = float("inf")
    x[2, shape[1] // 2] = float("-inf")
    low = torch.full(shape, float("-inf"))

    def body(x: ir.Value, low: ir.Value) -> list[ir.Value]:
        values = [(kind, v) for kind in ("max", "min") for v in (x, low)]
        return [reduce(k, v, *d) for k, v in values for d in ((0,), (1,), (0, 1))]

    run_cases([make("nan", [Arg(shape, values=x), Arg(shape, values=low)], body)])


@pytest.mark.parametrize("dtype", ["f32", "i64", "ui8"])
def test_arguments_of_extremes(dtype: str) -> None:
    cases = []
    for shape in [(7,), (3, 50), (4, 5, 6)]:

        def body(x: ir.Value, rank: int = len(shape)) -> list[ir.Value]:
            return [reduce(k, x, d) for k in ("argmax", "argmin") for d in range(rank)]

        cases.append(make(f"arg {shape}", [Arg(shape, dtype)], body))
    run_cases(cases)


# -- regions of networks


def _softmax(x: ir.Value, log: bool) -> ir.Value:
    shape = builder.type_of(x).shape
    kept = range(len(shape) - 1)
    last = len(shape) - 1
    shifted = b("sub", x, spread(reduce("max", x, last), shape, *kept))
    e = b("exp", shifted)
    total = reduce("sum", e, last)
    if log:
        return b("sub", shifted, spread(b("log", total), shape, *kept))
    return b("div", e, spread(total, shape, *kept))


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype: str) -> None:
    cases = []
    for shape in [(1,), (1, 1), (3, 7), (8, 64), (50, 1000), (2, 3, 4, 33), (1, 50000), (4, 0)]:
        if shape[-1] == 0:
            continue
        for log in (False, True):
            name = f"softmax {shape} {log}"
            body = lambda x, log=log: [_softmax(x, log)]  # noqa: E731
            cases.append(make(name, [Arg(shape, dtype)], body, **tolerances(dtype, 2)))
    run_cases(cases, threads=(1, 2), repeat=True)


def test_softmax_over_other_dimensions() -> None:
    def body(x: ir.Value) -> list[ir.Value]:
        out = []
        for d in range(3):
            kept = [i for i in range(3) if i != d]
            shape = (6, 40, 70)
            e = b("exp", b("sub", x, spread(reduce("max", x, d), shape, *kept)))
            out.append(b("div", e, spread(reduce("sum", e, d), shape, *kept)))
        return out

    run_cases([make("softmax", [Arg((6, 40, 70))], body, rtol=1e-5, atol=1e-6)], threads=(1, 2))


def _mean(x: ir.Value, *dims: int) -> ir.Value:
    shape = builder.type_of(x).shape
    count = 1
    for d in dims:
        count *= shape[d]
    total = reduce("sum", x, *dims)
    return b("mul", total, full(1.0 / count, total))


def _layer_norm(x: ir.Value, w: ir.Value, c: ir.Value, g: ir.Value) -> list[ir.Value]:
    """Forward and backward."""
    shape = builder.type_of(x).shape
    last = len(shape) - 1
    kept, inner = range(last), (last,)
    centered = b("sub", x, spread(_mean(x, last), shape, *kept))
    variance = _mean(b("mul", centered, centered), last)
    scale = b("rsqrt", b("add", variance, full(1e-5, variance)))
    wide = spread(scale, shape, *kept)
    normal = b("mul", centered, wide)
    y = b("add", b("mul", normal, spread(w, shape, *inner)), spread(c, shape, *inner))
    gw = b("mul", g, spread(w, shape, *inner))
    mean_g = spread(_mean(gw, last), shape, *kept)
    mean_gn = spread(_mean(b("mul", gw, normal), last), shape, *kept)
    dx = b("mul", wide, b("sub", b("sub", gw, mean_g), b("mul", normal, mean_gn)))
    dw = reduce("sum", b("mul", g, normal), *kept)
    return [y, dx, dw, reduce("sum", g, *kept), scale]


@pytest.mark.parametrize("shape", [(2, 5), (3, 4, 33), (40, 768), (1, 1), (5, 1, 100)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    args = [Arg(shape), Arg(shape[-1:]), Arg(shape[-1:]), Arg(shape)]
    run_cases([make("layer norm", args, _layer_norm, rtol=1e-4, atol=1e-4)], threads=(1, 2))


def _batch_norm(channel: int) -> object:
    def body(x: ir.Value, w: ir.Value, mean: ir.Value, g: ir.Value) -> list[ir.Value]:
        shape = builder.type_of(x).shape
        dims = [d for d in range(len(shape)) if d != channel]
        m = _mean(x, *dims)
        centered = b("sub", x, spread(m, shape, channel))
        variance = _mean(b("mul", centered, centered), *dims)
        scale = b("rsqrt", b("add", variance, full(1e-5, variance)))
        normal = b("mul", centered, spread(scale, shape, channel))
        y = b("maximum", b("mul", normal, spread(w, shape, channel)), full(0, x))
        running = b("add", b("mul", mean, full(0.9, mean)), b("mul", m, full(0.1, m)))
        live = b("select", b("compare", y, full(0, y), predicate="gt"), g, full(0, g))
        dw = reduce("sum", b("mul", live, normal), *dims)
        return [y, running, dw, reduce("sum", live, *dims)]

    return body


@pytest.mark.parametrize("channel", [1, 3])
@pytest.mark.parametrize("last", [False, True])
def test_batch_norm(channel: int, last: bool) -> None:
    shape = (6, 33, 9, 70)
    strides = (33 * 9 * 70, 1, 33 * 70, 33) if last else None
    c = shape[channel]
    args = [Arg(shape, strides=strides), Arg((c,)), Arg((c,)), Arg(shape, strides=strides)]
    case = make("batch norm", args, _batch_norm(channel), alias={1: 2}, rtol=1e-4, atol=1e-3)
    run_cases([case], threads=(1, 2))


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_cross_entropy(classes: int) -> None:
    rows = 37

    def body(x: ir.Value, target: ir.Value) -> list[ir.Value]:
        shape = (rows, classes)
        logp = _softmax(x, log=True)
        here = b("iota", shape=shape, dim=1, dtype="i64")
        hot = b("compare", here, spread(target, shape, 0), predicate="eq")
        picked = b("select", hot, logp, full(0, logp))
        loss = b("neg", _mean(reduce("sum", picked, 1), 0))
        grad = b("sub", b("exp", logp), b("convert", hot, dtype="f32"))
        return [loss, b("mul", grad, full(1.0 / rows, grad)), logp]

    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(1))
    args = [Arg((rows, classes)), Arg((rows,), "i64", values=target)]
    run_cases([make("cross entropy", args, body, rtol=1e-5, atol=1e-6)], threads=(1, 2))


def test_siblings_and_many_outputs() -> None:
    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        s, p = b("add", x, y), b("mul", x, y)
        rows = [reduce("sum", s, 1), reduce("max", p, 1), reduce("min", x, 1)]
        columns = [reduce("sum", p, 0), reduce("max", s, 0)]
        either = b("compare", x, y, predicate="lt")
        flags = [reduce("any", either, 1), reduce("all", either, 0), reduce("any", either, 0, 1)]
        return [s, p, *rows, *columns, *flags, b("exp", rows[0]), b("neg", columns[0])]

    shapes = [(3, 5), (64, 64), (2, 40000), (40000, 2), (500, 70)]
    cases = [make(f"siblings {s}", [Arg(s), Arg(s)], body, rtol=1e-4, atol=1e-3) for s in shapes]
    run_cases(cases, threads=(1, 2))


def test_mixed_types_around_a_reduction() -> None:
    def body(x: ir.Value, n: ir.Value, p: ir.Value) -> list[ir.Value]:
        wide = b("convert", x, dtype="f32")
        total = reduce("sum", b("select", p, wide, full(0, wide)), 1)
        count = reduce("sum", b("convert", p, dtype="i64"), 1)
        mean = b("div", total, b("convert", count, dtype="f32"))
        big = reduce("max", b("convert", n, dtype="f64"), 1)
        return [b("convert", mean, dtype="bf16"), count, big, reduce("any", p, 1), reduce("all", p, 0)]  # fmt: skip

    cases = []
    for shape in [(9, 100), (3, 4097)]:
        args = [Arg(shape, "bf16"), Arg(shape, "i32"), Arg(shape, "i1")]
        cases.append(make(f"mixed {shape}", args, body, rtol=2e-2, atol=1e-2))
    run_cases(cases, threads=(1, 2))

"""Every elementwise op as machine code against the interpreter: element types, shapes, strides."""

from __future__ import annotations

import itertools

import pytest
import torch
from codegen_harness import (
    FLOATS,
    INTEGERS,
    Arg,
    Case,
    b,
    full,
    make,
    random_tensor,
    run_cases,
)
from ir_interpreter import DTYPES

from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

GROUPS = {
    "float": FLOATS,
    "number": FLOATS + INTEGERS,
    "integer": INTEGERS,
    "bits": (*INTEGERS, "i1"),
    "any": (*FLOATS, *INTEGERS, "i1"),
    "bool": ("i1",),
}
SHAPES = [(0,), (3, 0, 2), (), (1,), (1, 1, 1), (7,), (32,), (3, 5, 67), (2, 3, 4, 5, 6), (40001,)]

#: ops whose oracle has another domain or other numbers at the edges, tested on their own
_APART = {"convert", "compare", "select", "pow", "shift_left", "shift_right"}


def _ops(dtype: str, arity: int) -> list[str]:
    return [
        name
        for name, d in OPS.items()
        if d.category == "elementwise"
        and dtype in GROUPS[d.dtypes]
        and len(d.operands) == arity
        and name not in _APART
    ]


def _tolerance(dtype: str) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-6} if dtype == "f32" else {}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_every_op(dtype: str) -> None:
    cases: list[Case] = []
    for shape in SHAPES:

        def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
            out = [b(name, x) for name in _ops(dtype, 1)]
            return out + [b(name, x, y) for name in _ops(dtype, 2)]

        args = [Arg(shape, dtype), Arg(shape, dtype)]
        cases.append(make(f"{dtype}{list(shape)}", args, body, **_tolerance(dtype)))
    run_cases(cases, threads=(1, 2))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "i1"])
def test_converts_compares_selects(dtype: str) -> None:
    predicates = ("eq", "ne", "lt", "le", "gt", "ge")
    cases = []
    for shape in [(), (3, 5), (1000,)]:

        def body(x: ir.Value, y: ir.Value, p: ir.Value) -> list[ir.Value]:
            targets = [d for d in (*FLOATS, *INTEGERS, "i1") if d != dtype]
            magnitude = x
            if dtype in FLOATS:  # a negative float as an unsigned integer has no one meaning
                magnitude = b("abs", x)
            out = [b("convert", magnitude, dtype=d) for d in targets]
            out += [b("compare", x, y, predicate=q) for q in predicates]
            out += [b("compare", x, x, predicate=q) for q in predicates]
            return [*out, b("select", p, x, y), b("select", p, full(1, x), x)]

        args = [Arg(shape, dtype), Arg(shape, dtype), Arg(shape, "i1")]
        cases.append(make(f"{dtype}{list(shape)}", args, body))
    run_cases(cases)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity(dtype: str) -> None:
    special = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 2.5, -2.5, 0.5]
    pairs = torch.tensor(list(itertools.product(special, special)), dtype=DTYPES[dtype])
    x, y = pairs[:, 0].clone(), pairs[:, 1].clone()
    exact = ["maximum", "minimum", "add", "mul", "sub", "div", "copysign", "fmod"]
    unary = ["neg", "abs", "sign", "floor", "ceil", "trunc", "round", "is_nan", "is_inf"]

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        out = [b(n, x, y) for n in exact] + [b(n, x) for n in unary]
        return out + [b("compare", x, y, predicate=p) for p in ("eq", "ne", "lt", "ge")]

    n = (len(x),)
    case = make("special", [Arg(n, dtype, values=x), Arg(n, dtype, values=y)], body)
    run_cases([case])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_edges(dtype: str) -> None:
    info = torch.iinfo(DTYPES[dtype])
    edge = sorted(
        {info.min, info.min + 1, -1, 0, 1, 2, 3, 7, info.max - 1, info.max}
        & set(range(info.min, info.min + 2))
        | {v for v in (-1, 0, 1, 2, 3, 7, info.max - 1, info.max) if info.min <= v}
    )
    pairs = torch.tensor(list(itertools.product(edge, edge)), dtype=DTYPES[dtype])
    # a quotient that overflows is not defined in C
    keep = (
        ~((pairs[:, 0] == info.min) & (pairs[:, 1] == -1))
        if info.min < 0
        else torch.ones(len(pairs), dtype=bool)
    )
    pairs = pairs[keep]
    n = (len(pairs),)
    names = ["div", "remainder", "fmod", "maximum", "minimum", "add", "mul", "and", "xor"]

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        return [b(name, x, y) for name in names]

    args = [Arg(n, dtype, values=pairs[:, i].clone()) for i in range(2)]
    bits = torch.iinfo(DTYPES[dtype]).bits
    amounts = torch.arange(len(pairs)) % (bits + 2)
    if dtype != "ui8":
        amounts = amounts - 1
    args.append(Arg(n, dtype, values=amounts.to(DTYPES[dtype])))

    def shifts(x: ir.Value, y: ir.Value, amount: ir.Value) -> list[ir.Value]:
        return [*body(x, y), b("shift_left", x, amount), b("shift_right", x, amount)]

    run_cases([make(dtype, args, shifts)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers(dtype: str) -> None:
    base = torch.arange(-5, 6) if dtype != "ui8" else torch.arange(0, 11)
    grid = torch.cartesian_prod(base, torch.arange(0, 8)).to(DTYPES[dtype])
    args = [Arg((len(grid),), dtype, values=grid[:, i].clone()) for i in range(2)]
    run_cases([make(dtype, args, lambda x, y: [b("pow", x, y)])])


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_powers(dtype: str) -> None:
    generator = torch.Generator().manual_seed(1)
    base = random_tensor((500,), dtype, generator).abs() + 0.1
    power = random_tensor((500,), dtype, generator)
    args = [Arg((500,), dtype, values=base), Arg((500,), dtype, values=power)]
    run_cases([make(dtype, args, lambda x, y: [b("pow", x, y)], **_tolerance(dtype))])


# -- strides


def _strides(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Row-major, reversed, channels-last, broadcast, padded rows and stepped strides of a shape."""
    rank = len(shape)
    dense = torch.empty(shape).stride()
    reverse = torch.empty(shape[::-1]).permute(*reversed(range(rank))).stride()
    order = [0, *range(2, rank), 1]
    last = torch.empty([shape[d] for d in order])
    back = [order.index(d) for d in range(rank)]
    padded = torch.empty([*shape[:-1], shape[-1] + 3]).stride()
    stepped = tuple(s * 2 for s in dense)
    repeated = [tuple(0 if d == n else s for d, s in enumerate(dense)) for n in range(rank)]
    return [dense, reverse, last.permute(back).stride(), padded, stepped, (0,) * rank, *repeated]


@pytest.mark.parametrize(
    "shape",
    [(5, 67), (64, 64), (3, 4, 33), (2, 33, 5, 7), (2, 3, 4, 5, 6), (2, 3, 2, 3, 2, 3, 5), (1, 40)],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "i1"])
def test_strides(shape: tuple[int, ...], dtype: str) -> None:
    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        if dtype == "i1":
            return [b("and", x, b("not", y)), b("or", x, y)]
        return [b("sub", b("mul", x, y), y), b("maximum", x, y)]

    layouts = _strides(shape)
    firsts = layouts[:5] if dtype == "f32" else layouts[:2]
    cases = [
        make(f"{s} {t}", [Arg(shape, dtype, s), Arg(shape, dtype, t)], body)
        for s, t in itertools.product(firsts, layouts)
    ]
    run_cases(cases)


def test_operands_that_are_transposed_in_blocks() -> None:
    """A last dimension shorter than a vector, and operands that are contiguous along the one before it: an update of
    weights by the gradient of a channels-last convolution."""

    def body(x: ir.Value, g: ir.Value, h: ir.Value, s: ir.Value, a: ir.Value) -> list[ir.Value]:
        shape = builder.type_of(x).shape
        step = b("mul", g, b("broadcast", s, shape=shape, dims=()))
        moved = b("add", b("mul", x, b("broadcast", a, shape=shape, dims=(0,))), step)
        return [moved, b("sub", h, moved)]

    cases = []
    for i, taps in ((5, 9), (16, 2), (70, 9), (130, 16), (64, 3), (200, 15)):
        turned = (i * taps, 1, i)
        shape = (3, i, taps)
        args = [
            Arg(shape),
            Arg(shape, strides=turned),
            Arg(shape, strides=turned),
            Arg(()),
            Arg((3,)),
        ]
        cases.append(make(f"{i} {taps}", args, body))
    flat = [
        Arg((70, 4)),
        Arg((70, 4), strides=(1, 70)),
        Arg((70, 4), strides=(1, 80)),
        Arg(()),
        Arg((70,)),
    ]
    cases.append(make("a varying number", flat, body))
    cases.append(make("flat", flat[:3], lambda x, g, h: [b("add", b("mul", x, g), h)]))
    run_cases(cases, threads=(1, 2), repeat=True)
    assert all(case.program for case in cases)
    found = ["llvm.alloca" in "".join(c.program.kernels.values()) for c in cases if c.program]
    assert found == [True, False, True, True, False, True, False, True]


def test_views_into_kernels() -> None:
    """Slices with steps, transposes, broadcasts and reverses between kernels are read in place."""

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        s = b("slice", b("exp", x), starts=(1, 2, 3), limits=(9, 33, 40), strides=(2, 3, 1))
        t = b("transpose", s, permutation=(2, 0, 1))
        w = b("broadcast", y, shape=builder.type_of(t).shape, dims=(1,))
        r = b("reverse", b("mul", t, w), dims=(0, 2))
        flat = b("reshape", b("neg", r), shape=(builder.type_of(r).numel,))
        return [t, w, r, flat, b("reverse", flat, dims=(0,)), s, b("add", t, w)]

    run_cases([make("views", [Arg((9, 33, 41)), Arg((4,))], body, rtol=1e-5, atol=1e-6)])


def test_steps_give_the_same_bits_again() -> None:
    args = [Arg((301, 1037)), Arg((1037,))]

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        z = b("add", b("mul", x, x), b("broadcast", y, shape=(301, 1037), dims=(1,)))
        return [b("exp", z), b("reduce", z, kind="sum", dims=(0,)),
                b("reduce", z, kind="sum", dims=(1,)), b("reduce", z, kind="sum", dims=(0, 1))]  # fmt: skip

    cases = [make("bits", args, body, rtol=1e-5, atol=1e-2)]
    run_cases(cases, threads=(1, 2), repeat=True)


def test_bfloat16_values_are_rounded_once() -> None:
    """Of exact ops on bfloat16 values, also in float32, the result is stored as it is; other float32 values round."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16)  # all: subnormal ones, infinities, NaN

    def narrow(x: ir.Value) -> ir.Value:
        return b("convert", x, dtype="bf16")

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        wide, z = b("convert", x, dtype="f32"), b("convert", y, dtype="f32")
        negative = b("compare", wide, full(0.0, wide), predicate="lt")
        found = [b("select", negative, full(c, wide), wide) for c in (0.0, 0.1, 3.0e38)]
        found += [b("select", negative, z, b("neg", b("abs", wide))), b("maximum", wide, z)]
        found += [b("select", negative, b("mul", wide, full(1.001, wide)), z)]
        return [*map(narrow, found), b("minimum", b("neg", x), y), b("abs", x)]

    args = [Arg((1 << 16,), "bf16", values=v) for v in (values, values.flip(0).roll(7))]
    case = make("exact", args, body)
    (got,) = run_cases([case])
    for n, want in (
        (0, torch.where(values < 0, torch.zeros_like(values), values)),
        (7, values.abs()),
    ):
        assert torch.equal(got[n].view(torch.int16), want.view(torch.int16))
    assert case.program is not None
    ((text,),) = [case.program.kernels.values()]
    assert text.count("cvtneps2bf16.512") == 3  # of 0.1, 3e38 and of the product

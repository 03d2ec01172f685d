"""Whole programs against the interpreter: copies, contractions, indexing, random numbers, updates in place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from codegen_harness import (
    Arg,
    Case,
    b,
    compile_case,
    copies,
    full,
    make,
    reduce,
    run_cases,
    same_bits,
    spread,
)
from tolerance import tolerances

from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep
from gflow.dialects.types import TensorType
from gflow.runtime import Executable

# -- data movement


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "i8", "i1"])
def test_pad_concatenate_reverse(dtype: str) -> None:
    cases = []
    for shape in [(3,), (0, 4), (5, 33), (2, 3, 17), (1, 1)]:
        rank = len(shape)

        def body(x: ir.Value, y: ir.Value, rank: int = rank, dtype: str = dtype) -> list[ir.Value]:
            value = builder.splat(1, TensorType((), dtype))
            out = [b("pad", x, value, low=(1,) * rank, high=(2,) * rank),
                   b("pad", x, value, low=(0,) * rank, high=(0,) * rank)]  # fmt: skip
            for d in range(rank):
                out += [b("concatenate", x, y, x, dim=d), b("reverse", x, dims=(d,))]
            out.append(b("reverse", x, dims=tuple(range(rank))))
            t = b("transpose", x, permutation=tuple(reversed(range(rank))))
            return [*out, b("concatenate", t, t, dim=0), b("reverse", t, dims=(0,))]

        cases.append(make(f"{dtype} {shape}", [Arg(shape, dtype), Arg(shape, dtype)], body))
    run_cases(cases, threads=(1, 2))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "i1"])
@pytest.mark.parametrize("index", ["i64", "i32"])
def test_take_gather(dtype: str, index: str) -> None:
    shape = (5, 6, 7)
    kind = {"i64": torch.int64, "i32": torch.int32}[index]

    def body(x: ir.Value, i: ir.Value, j: ir.Value) -> list[ir.Value]:
        out = [b("take", x, v, dim=d) for v in (i, j) for d in range(3)]
        t = b("transpose", x, permutation=(2, 0, 1))
        g = b("broadcast", i, shape=shape, dims=(1,))
        return [*out, b("take", t, i, dim=1), *(b("gather", x, g, dim=d) for d in range(3))]

    one = torch.randint(0, 5, (6,)).to(kind)
    two = torch.randint(0, 5, (2, 3)).to(kind)
    args = [Arg(shape, dtype), Arg((6,), index, values=one), Arg((2, 3), index, values=two)]
    run_cases([make("take", args, body)])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_index_add(dtype: str) -> None:
    def body(x: ir.Value, i: ir.Value, s: ir.Value) -> list[ir.Value]:
        flat = b("index_add", x, i, s, dim=0)
        turned = b("transpose", x, permutation=(1, 0))
        return [flat, b("index_add", turned, i, b("transpose", s, permutation=(1, 0)), dim=1)]

    index = torch.tensor([0, 2, 2, 1, 0, 2])
    args = [Arg((3, 5), dtype), Arg((6,), "i64", values=index), Arg((6, 5), dtype)]
    run_cases([make("index_add", args, body, rtol=1e-5, atol=1e-5)])


def test_constants_and_iota() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 7

    def body(x: ir.Value) -> list[ir.Value]:
        dense = builder.dense(values, TensorType((3, 4), "f32"))
        flags = builder.dense(np.array([True, False, True]), TensorType((3,), "i1"))
        halves = builder.dense(
            np.array([0x3F80, 0x4000], dtype=np.uint16), TensorType((2,), "bf16")
        )
        iotas = [b("iota", shape=(3, 4), dim=d, dtype=t) for d in (0, 1)
                 for t in ("f32", "i64", "bf16", "i8", "f64")]  # fmt: skip
        splats = [builder.splat(v, TensorType(s, t)) for v, s, t in
                  [(2.5, (3, 4), "f32"), (True, (5,), "i1"), (-3, (), "i32"), (0.1, (40,), "f64"),
                   (1.5, (2, 20), "bf16"), (float("inf"), (3,), "f16")]]  # fmt: skip
        used = b("add", b("mul", x, dense), spread(dense, (3, 4), 0, 1))
        picked = b("select", spread(flags, (3, 4), 0), x, dense)
        turned = b("transpose", dense, permutation=(1, 0))
        return [dense, flags, halves, *iotas, *splats, used, picked, turned]

    run_cases([make("constants", [Arg((3, 4))], body)])


def test_results_that_are_arguments_or_views() -> None:
    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        t = b("transpose", x, permutation=(1, 0))
        s = b("slice", x, starts=(0, 1), limits=(3, 5), strides=(2, 2))
        e = b("exp", x)
        wide = b("broadcast", y, shape=(4, 5), dims=(1,))
        flat = b("reshape", t, shape=(15,))
        return [x, x, t, s, e, e, b("transpose", e, permutation=(1, 0)), wide, flat, y]

    run_cases([make("views", [Arg((3, 5)), Arg((5,))], body)])


# -- contractions


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32"])
def test_matmul(dtype: str) -> None:
    cases = []
    sizes = [(1, 1, 1), (3, 5, 4), (17, 33, 9), (64, 64, 64), (1, 50, 7), (7, 1, 5), (0, 3, 2),
             (3, 0, 2), (3, 2, 0)]  # fmt: skip
    close = tolerances(dtype, 10)
    for (m, k, n), batch in itertools.product(sizes, [(), (3,), (2, 2)]):
        r = len(batch)
        swap = (*range(r), r + 1, r)

        def body(
            a: ir.Value, at: ir.Value, c: ir.Value, ct: ir.Value, swap: tuple[int, ...] = swap
        ) -> list[ir.Value]:
            lefts = [a, b("transpose", at, permutation=swap)]
            rights = [c, b("transpose", ct, permutation=swap)]
            return [b("matmul", x, y) for x in lefts for y in rights]

        shapes = [(m, k), (k, m), (k, n), (n, k)]
        args = [Arg((*batch, *s), dtype) for s in shapes]
        cases.append(make(f"{dtype} {batch} {m} {k} {n}", args, body, **close))
    run_cases(cases)


def test_matmul_of_odd_strides() -> None:
    """Padded rows, steps in both directions, batches that repeat or lie last."""

    def body(a: ir.Value, c: ir.Value) -> list[ir.Value]:
        wide = b("broadcast", b("slice", a, starts=(0, 0, 0), limits=(1, 8, 6), strides=(1, 1, 1)),
                 shape=(3, 8, 6), dims=(0, 1, 2))  # fmt: skip
        stepped = b("slice", a, starts=(0, 0, 0), limits=(3, 8, 6), strides=(1, 2, 2))
        head = b("slice", c, starts=(0, 0, 0), limits=(3, 3, 5), strides=(1, 1, 1))
        mixed = b("transpose", b("exp", b("transpose", a, permutation=(1, 0, 2))),
                  permutation=(1, 0, 2))  # fmt: skip
        return [b("matmul", wide, c), b("matmul", stepped, head), b("matmul", mixed, c)]

    strides = [None, (1, 30, 3), (0, 6, 1), (100, 9, 1), (48, 1, 8)]
    args = [[Arg((3, 8, 6), strides=s), Arg((3, 6, 5))] for s in strides]
    run_cases([make(f"{s}", a, body, rtol=1e-5, atol=1e-5) for s, a in zip(strides, args)])


# -- random numbers


@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
def test_random_numbers(kind: str) -> None:
    dtypes = ("i64", "i32", "i8", "ui8") if kind == "bits" else ("f32", "f64", "bf16", "f16")
    exact = kind != "normal"
    cases = []
    for shape in [(1,), (3,), (5, 7), (3, 4, 50), (0,), (100003,)]:

        def body(rng: ir.Value, shape: tuple[int, ...] = shape) -> list[ir.Value]:
            draws = [(n, t) for n, t in enumerate(dtypes)]
            return [
                b("random", rng, kind=kind, stream=n, shape=shape, dtype=t) for n, t in draws
            ] + [b("random", rng, kind=kind, stream=1 << 20, shape=shape, dtype=dtypes[0])]

        for state in [(0, 0), (123456789012345, 7), (-1, 2**40 + 5)]:
            arg = Arg((2,), "i64", values=torch.tensor(state))
            tolerance = {} if not exact else {"rtol": 0.0, "atol": 0.0}
            if not exact:
                tolerance = (
                    {"rtol": 1e-4, "atol": 1e-5}
                    if shape[0] != 100003
                    else {"rtol": 1e-3, "atol": 1e-3}
                )
            cases.append(make(f"{kind} {shape} {state}", [arg], body, **tolerance))
    if not exact:  # halves may fall on either side of a rounding boundary
        for case in cases:
            case.rtol, case.atol = 2e-2, 2e-3
    run_cases(cases, threads=(1, 2))


def test_random_under_views() -> None:
    """A mask inside a larger kernel, transposed and broadcast, has the numbers of its own positions."""

    def body(x: ir.Value, rng: ir.Value) -> list[ir.Value]:
        u = b("random", rng, kind="uniform", stream=3, shape=(6, 40), dtype="f32")
        keep = b("compare", u, full(0.5, u), predicate="lt")
        y = b("select", keep, x, full(0, x))
        t = b("transpose", y, permutation=(1, 0))
        return [y, b("neg", t), reduce("sum", u, 0), reduce("sum", u, 1), keep]

    args = [Arg((6, 40)), Arg((2,), "i64", values=torch.tensor([5, 9]))]
    run_cases([make("mask", args, body, rtol=1e-5, atol=1e-5)])


# -- updates in place


def _updates(name: str, args: list[Arg], body: object, alias: dict[int, int]) -> Case:
    return make(name, args, body, alias=alias, rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]


def _check_updates(cases: list[Case]) -> None:
    """Results are right, and they are in the arguments' own storage."""
    run_cases(cases, threads=(1, 2))
    for case in cases:
        executable = Executable(compile_case(case))
        args = copies(case.args)
        results = executable(args)
        for n, i in case.alias.items():
            assert results[n].data_ptr() == args[i].data_ptr(), case.name


def test_update_in_place() -> None:
    shape = (37, 50)

    def step(p: ir.Value, g: ir.Value, m: ir.Value) -> tuple[ir.Value, ir.Value]:
        v = b("add", b("mul", m, full(0.9, m)), g)
        return b("sub", p, b("mul", v, full(0.1, v))), v

    three = [Arg(shape), Arg(shape), Arg(shape)]
    last = [Arg(shape, strides=(1, 37)), Arg(shape), Arg(shape, strides=(1, 37))]

    def plain(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        return list(step(p, g, m))

    def old_value_read_later(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        new, v = step(p, g, m)
        square = b("matmul", p, b("transpose", new, permutation=(1, 0)))
        return [new, v, square]

    def old_value_returned(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        new, v = step(p, g, m)
        return [new, v, p, b("transpose", m, permutation=(1, 0)), new]

    def read_transposed(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        square = b("slice", p, starts=(0, 0), limits=(37, 37), strides=(1, 1))
        turned = b("transpose", square, permutation=(1, 0))
        padded = b("pad", turned, builder.splat(0, TensorType((), "f32")), low=(0, 0), high=(0, 13))
        return [b("add", p, padded), b("sub", m, g)]

    def reversed_and_swapped(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        return [b("reverse", p, dims=(0,)), p]

    def swapped(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        return [m, p]

    def swapped_in_a_kernel(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        return [b("add", m, g), b("sub", p, g)]

    def normalized(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        total = reduce("sum", b("mul", p, p), 1)
        return [
            b("div", p, spread(b("sqrt", total), shape, 0)),
            b("add", m, spread(reduce("sum", m, 0), shape, 1)),
        ]

    def constant(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        return [full(0, p), g]

    def same_value_twice(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        new, _ = step(p, g, m)
        return [new, new]

    def read_broadcast(p: ir.Value, g: ir.Value, m: ir.Value) -> list[ir.Value]:
        row = b("slice", p, starts=(3, 0), limits=(4, 50), strides=(1, 1))
        return [b("mul", p, b("broadcast", row, shape=shape, dims=(0, 1))), b("neg", m)]

    bodies = [plain, old_value_read_later, old_value_returned, read_transposed,
              reversed_and_swapped, swapped, swapped_in_a_kernel, normalized, constant,
              same_value_twice, read_broadcast]  # fmt: skip
    cases = [
        _updates(f"{f.__name__} {n}", args, f, {0: 0, 1: 2})
        for f in bodies
        for n, args in enumerate((three, last))
    ]
    _check_updates(cases)


def test_update_of_statistics() -> None:
    """Buffers of the reduced shape, updated in the kernel that also needs their old value."""

    def body(x: ir.Value, mean: ir.Value, count: ir.Value) -> list[ir.Value]:
        new = b(
            "add",
            b("mul", mean, full(0.9, mean)),
            reduce("sum", b("sub", x, spread(mean, (300, 40), 1)), 0),
        )
        y = b("sub", x, spread(mean, (300, 40), 1))
        one = builder.splat(1, TensorType((), "i64"))
        return [y, new, b("add", count, one)]

    args = [Arg((300, 40)), Arg((40,)), Arg((), "i64")]
    _check_updates([_updates("statistics", args, body, {1: 1, 2: 2})])


def test_results_stay_the_callers() -> None:
    case = make("fresh", [Arg((100,))], lambda x: [b("add", x, full(1, x))])
    executable = Executable(compile_case(case))
    first = executable([torch.zeros(100)])[0]
    second = executable([torch.ones(100)])[0]
    assert first.sum() == 100
    assert second.sum() == 200
    address = second.data_ptr()
    del second  # nobody can see it any more, so its memory is used again
    third = executable([torch.full((100,), 2.0)])[0]
    assert third.data_ptr() == address
    assert first.sum() == 100
    assert third.sum() == 300


def test_no_detour_through_aten() -> None:
    """Everything in a training step's vocabulary but convolutions and indexing is generated code or BLAS."""

    def body(x: ir.Value, w: ir.Value) -> list[ir.Value]:
        h = b("maximum", b("matmul", x, w), full(0, b("matmul", x, w)))
        p = b("pad", h, builder.splat(0, TensorType((), "f32")), low=(1, 0), high=(0, 1))
        c = b("concatenate", p, p, dim=0)
        return [b("reverse", c, dims=(0,)), reduce("max", c, 1)]

    program = compile_case(make("steps", [Arg((20, 30)), Arg((30, 40))], body))
    assert not [s for s in program.steps if isinstance(s, AtenStep)]


def test_equal_inputs_give_equal_bits() -> None:
    def body(x: ir.Value, w: ir.Value) -> list[ir.Value]:
        h = b("tanh", b("matmul", x, w))
        return [reduce("sum", h, 0), reduce("sum", h, 1), reduce("sum", h, 0, 1), h]

    case = make("bits", [Arg((200, 300)), Arg((300, 500))], body, rtol=1e-3, atol=1e-3)
    executable = Executable(compile_case(case))
    first = [t.clone() for t in executable(case.args)]
    for _ in range(5):
        assert all(same_bits(a, c) for a, c in zip(first, executable(case.args)))

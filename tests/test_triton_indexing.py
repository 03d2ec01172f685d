"""Look-ups by index and sums that go back, as Triton kernels, under the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ir_interpreter import DTYPES, run_module

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep, LaunchStep
from gflow.dialects.types import TensorType
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

Tensor = torch.Tensor


def check(types: list[str], body: Any, args: list[Tensor], native: bool = True) -> Tensor:
    """Against the reference; the first result."""
    with make_context():
        text = _function(types, body)
        wanted = run_module(ir.Module.parse(text), args)
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
    if native:
        assert not any(isinstance(s, AtenStep) for s in program.steps)
    ours = Executable(program, InterpreterDevice())([a.clone() for a in args])
    for a, w in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=1e-5, atol=1e-5, check_stride=False, equal_nan=True)
    return ours[0]


def op(name: str, **attrs: Any) -> Any:
    return lambda args: builder.build_op(name, args, attrs).results


def numbers(shape: tuple[int, ...], dtype: str) -> Tensor:
    if dtype == "i1":
        return torch.rand(shape) > 0.5
    return (torch.randn(shape) * 5).to(DTYPES[dtype])


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return "x".join([*map(str, shape), dtype])


@pytest.mark.parametrize(
    ("shape", "index", "dim", "dtype"),
    [
        ((11, 37), (2, 5), 0, "f32"), ((5, 7, 3), (9,), 1, "bf16"), ((4, 6), (13,), 1, "i64"), ((9,), (3, 2), 0, "f16"),
        ((3, 0), (2,), 0, "f32"), ((4, 5), (0,), 0, "f32"), ((6, 3), (4,), 0, "i1"),
    ],
)  # fmt: skip
def test_take(shape: tuple[int, ...], index: tuple[int, ...], dim: int, dtype: str) -> None:
    args = [numbers(shape, dtype), torch.randint(shape[dim], index)]
    check([_type(shape, dtype), _type(index, "i64")], op("take", dim=dim), args)


def test_take_of_views() -> None:
    """x and the index where they lie."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        x = builder.transpose(args[0], (1, 2, 0))
        attrs = {"starts": [1], "limits": [8], "strides": [2]}
        index = builder.build("slice", [args[1]], attrs)
        return [builder.build("take", [x, index], {"dim": 1})]

    args = [torch.randn(3, 4, 5), torch.randint(5, (9,), dtype=torch.int32)]
    check(["3x4x5xf32", "9xi32"], body, args)


@pytest.mark.parametrize(
    ("shape", "index", "dim"),
    [((5, 7), (5, 1), 1), ((5, 7), (9, 7), 0), ((3, 4, 6), (2, 5, 6), 1), ((8,), (3,), 0)],
)
def test_gather(shape: tuple[int, ...], index: tuple[int, ...], dim: int) -> None:
    args = [torch.randn(shape), torch.randint(shape[dim], index)]
    check([_type(shape, "f32"), _type(index, "i64")], op("gather", dim=dim), args)


@pytest.mark.parametrize(
    ("shape", "index", "dim", "dtype"),
    [
        ((11, 37), (2, 50), 0, "f32"), ((5, 7, 3), (20,), 1, "f32"), ((4, 6), (13,), 1, "i64"), ((9,), (30,), 0, "f32"),
        ((40, 4), (300,), 0, "f16"), ((6, 4), (0,), 0, "f32"), ((6, 4), (1,), 0, "bf16"),
        ((2, 6), (1100,), 0, "f32"), ((3, 4, 5), (8, 130), 1, "i64"), ((70, 3), (1030,), 0, "bf16"),
    ],
)  # fmt: skip
def test_index_add(shape: tuple[int, ...], index: tuple[int, ...], dim: int, dtype: str) -> None:
    source = (*shape[:dim], *index, *shape[dim + 1 :])
    small = numbers(source, dtype) / (8 if dtype != "i64" else 1)
    args = [numbers(shape, dtype), torch.randint(shape[dim], index), small.to(DTYPES[dtype])]
    types = [_type(shape, dtype), _type(index, "i64"), _type(source, dtype)]
    if dtype in ("f16", "bf16"):  # rounded once here, after every addition there
        with make_context():
            text = _function(types, op("index_add", dim=dim))
            program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
        (found,) = Executable(program, InterpreterDevice())(args)
        exact = args[0].double().index_add(dim, args[1], args[2].double())
        limit = {"f16": 2**-10, "bf16": 2**-7}[dtype] * float(exact.abs().max())
        assert float((found.double() - exact).abs().max()) <= limit
    else:
        check(types, op("index_add", dim=dim), args)


def test_embedding_gradient() -> None:
    """To a table of zeros, with many equal indices: always the same bits."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        zeros = builder.splat(0.0, builder.type_of(args[2]))
        return [builder.build("index_add", [zeros, args[0], args[1]], {"dim": 0})]

    index = torch.cat([torch.zeros(40, dtype=torch.int64), torch.randint(10, (24,))])
    args = [index[torch.randperm(64)].reshape(4, 16), torch.randn(4, 16, 8), torch.zeros(10, 8)]
    types = ["4x16xi64", "4x16x8xf32", "10x8xf32"]
    assert torch.equal(check(types, body, args), check(types, body, args))


def test_sums_of_halves_are_rounded_once() -> None:
    """The gradient of an embedding in bfloat16 has the bits of one that is summed in float32 and then rounded."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        zeros = builder.splat(0.0, TensorType((5, 6), "f32"))
        source = builder.convert(args[1], "f32")
        total = builder.build("index_add", [zeros, args[0], source], {"dim": 0})
        return [builder.convert(total, "bf16")]

    types = ["40xi64", "40x6xbf16"]
    # sums are exact in float32, and not in bfloat16
    args = [torch.randint(5, (40,)), (torch.randint(-64, 64, (40, 6)) / 8).bfloat16()]
    with make_context():
        text = _function(types, body)
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
    assert "5x6xf32" not in program.ir
    (found,) = Executable(program, InterpreterDevice())(args)
    exact = torch.zeros(5, 6, dtype=torch.float64).index_add(0, args[0], args[1].double())
    assert torch.equal(found, exact.bfloat16())


@pytest.mark.parametrize("count", [12, 1100])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_sums_are_added_to_another_gradient(dtype: str, count: int) -> None:
    """In place of a product's result: tied weights. Rows without an index are not touched, and stay as they are."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        index, source, x, y = args
        other = builder.build("matmul", [x, y])
        zeros = builder.splat(0.0, builder.type_of(other))
        total = builder.build("index_add", [zeros, index, source], {"dim": 0})
        if dtype == "f32":
            return [builder.build("add", [other, total])]
        wide = [builder.convert(v, "f32") for v in (total, other)]
        return [builder.build("exp", [builder.convert(builder.build("add", wide), dtype)])]

    index = torch.where(torch.rand(count) < 0.9, 3, torch.randint(70, (count,)))
    types = [f"{count}xi64", f"{count}x16x{dtype}", f"70x32x{dtype}", f"32x16x{dtype}"]
    shapes = (count, 16), (70, 32), (32, 16)
    args = [index, *((torch.randint(-8, 8, s) / 64).to(DTYPES[dtype]) for s in shapes)]
    with make_context():
        program = compile_module(
            ir.Module.parse(_function(types, body)), CompileOptions(target="cuda:90")
        )
    kernels = [s.kernel.rpartition("_")[0] for s in program.steps if isinstance(s, LaunchStep)]
    assert not [name for name in kernels if "add" in name and not name.startswith("index_add")]
    ((adds, out),) = [
        (s.args[0], s.args[4])
        for s in program.steps
        if isinstance(s, LaunchStep) and "index_add_" in s.kernel[:10] and "pieces" not in s.kernel
    ]
    assert (adds == out) == (dtype == "bf16")  # a result of the function has a place of its own
    (found,) = Executable(program, InterpreterDevice())([a.clone() for a in args])
    exact = (args[2].double() @ args[3].double()).index_add(0, index, args[1].double())
    exact = exact if dtype == "f32" else exact.exp()
    torch.testing.assert_close(
        found.double(), exact, rtol=1e-5 if dtype == "f32" else 2e-2, atol=1e-5
    )


def test_no_program_walks_a_long_run() -> None:
    """Token types: 1,040 of 1,100 indices are equal. Pieces of 32 are summed side by side; what is before and behind
    them, and their sums, are less than 2 · 32 and 32 rows."""
    index = torch.where(torch.randperm(1100) < 60, torch.randint(3, (1100,)), 1)
    source = torch.randn(1100, 5)
    with make_context():
        text = _function(["3x5xf32", "1100xi64", "1100x5xf32"], op("index_add", dim=0))
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
    order, pieces, _ = (s for s in program.steps if isinstance(s, LaunchStep))
    assert (order.kernel[:5], pieces.kernel[:16], pieces.grid) == (
        "order",
        "index_add_pieces",
        (34, 1, 1),
    )
    args = [torch.randn(3, 5), index, source]
    run = Executable(program, InterpreterDevice())
    (found,) = run(args)
    exact = args[0].double().index_add(0, index, source.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(found, run(args)[0])


def test_many_indices_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch, where comparing each with each takes longer."""
    monkeypatch.setattr("gflow.compiler.kernel.selection.gpu.other_ops.COMPARED", 16)
    for count in (40, 1100):
        args = [torch.randn(7, 5), torch.randint(7, (count,)), torch.randn(count, 5)]
        types = ["7x5xf32", f"{count}xi64", f"{count}x5xf32"]
        check(types, op("index_add", dim=0), args, native=False)

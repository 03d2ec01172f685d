"""argmax and argmin as Triton kernels, under the interpreter: the first of equal ones, NaN above all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ir_interpreter import DTYPES
from test_triton_indexing import check
from test_triton_rows import compiled

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

Tensor = torch.Tensor


def numbers(shape: tuple[int, ...], dtype: str) -> Tensor:
    """With many equal ones, a row of NaN and infinities, and the least ones in the last row."""
    if dtype == "i1":
        return torch.rand(shape) > 0.7
    kind = DTYPES[dtype]
    if not kind.is_floating_point:
        low = max(torch.iinfo(kind).min, -5)
        x = torch.randint(low, 5, shape, dtype=kind)
        x[-1] = torch.iinfo(kind).min
        return x
    x = (torch.randn(shape) * 3).round()
    x[0].view(-1)[::3] = torch.inf
    x[-1] = -torch.inf
    if x.dim() > 1:
        x[1].view(-1)[2::2] = torch.nan
    return x.to(kind)


def both(dim: int) -> Any:
    def body(args: list[ir.Value]) -> list[ir.Value]:
        kinds = ("argmax", "argmin")
        return [builder.build("reduce", args, {"kind": k, "dims": (dim,)}) for k in kinds]

    return body


@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [
        ((5, 37), 1, "f32"), ((37, 5), 0, "f16"), ((3, 11, 4), 1, "bf16"), ((4, 9), 1, "i64"), ((9,), 0, "i32"),
        ((4, 70), 1, "i8"), ((3, 8), 1, "ui8"), ((3, 8), 1, "i1"), ((0, 3), 1, "f32"), ((3, 1), 1, "f64"),
    ],
)  # fmt: skip
def test_rows(shape: tuple[int, ...], dim: int, dtype: str) -> None:
    x = numbers(shape, dtype) if shape[0] else torch.empty(shape)
    check(["x".join([*map(str, shape), dtype])], both(dim), [x])


def test_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared by programs; a row of a view; rows longer than a tile."""
    monkeypatch.setattr("gflow.compiler.kernel.selection.gpu.other_ops.SHARE", 64)
    monkeypatch.setattr("gflow.compiler.kernel.selection.gpu.other_ops.TILE", 32)
    x = numbers((3, 1001), "f32")
    check(["3x1001xf32"], both(1), [x])
    turned = lambda args: both(0)([builder.transpose(args[0], (1, 0))])  # noqa: E731
    check(["3x1001xf32"], turned, [x])
    check(["1001xi32"], both(0), [torch.arange(1001, dtype=torch.int32) % 700])


def test_calls_of_pytorch() -> None:
    """max and min along a dimension, and argmax of a whole tensor."""
    x = numbers((4, 3, 5), "f32")
    calls = lambda x: (*x.max(1), *x.min(-1), x.argmax(), x.argmin(2, keepdim=True))  # noqa: E731
    program = compiled(calls, x)
    assert not any(isinstance(s, AtenStep) for s in program.steps)
    for a, e in zip(Executable(program, InterpreterDevice())([x]), calls(x), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, check_stride=False)


def test_kernels_compile() -> None:
    with make_context():
        body = lambda args: [*both(0)(args[:1]), *both(1)(args[1:])]  # noqa: E731
        module = ir.Module.parse(_function(["5000000xf32", "4096x50257xbf16"], body))
        program = compile_module(module, CompileOptions(target="cuda:90"))
    code = compile_kernels([(k, 0) for k in program.triton.values()], 90)
    assert len(code) == 6
    assert not any(c.spills for c in code.values())

"""Kernels of fused regions at real sizes, compiled to machine code: no error, nothing spilled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import test_codegen_reductions as reductions
import torch
from codegen_harness import Arg, Case, b, full, make, reduce, spread
from ir_interpreter import DTYPES
from triton_harness import compile_case

from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects import builder
from gflow.dialects.mlir import ir


def _arg(shape: tuple[int, ...], dtype: str = "f32", strides: tuple[int, ...] | None = None) -> Arg:
    return Arg(shape, dtype, strides, torch.empty(1, dtype=DTYPES[dtype]).expand(shape))


def _gelu(x: ir.Value, bias: ir.Value) -> list[ir.Value]:
    wide = b("convert", b("add", x, spread(bias, builder.type_of(x).shape, 1)), dtype="f32")
    half = b("mul", wide, full(0.5, wide))
    return [b("convert", b("mul", half, b("erf", wide)), dtype="bf16")]


def _dropout(state: ir.Value, x: ir.Value) -> list[ir.Value]:
    shape = builder.type_of(x).shape
    u = b("random", state, kind="uniform", stream=5, shape=shape, dtype="f32")
    keep = b("compare", u, full(0.1, u), predicate="ge")
    return [b("select", keep, b("mul", x, full(1 / 0.9, x)), full(0, x))]


def _statistics(x: ir.Value, k: ir.Value) -> list[ir.Value]:
    d = b("sub", x, spread(k, builder.type_of(x).shape, 1))
    return [reduce("sum", d, 0), reduce("sum", b("mul", d, d), 0)]


def _moments(w: ir.Value, m: ir.Value, v: ir.Value, g: ir.Value) -> list[ir.Value]:
    m = b("add", b("mul", m, full(0.9, m)), b("mul", g, full(0.1, g)))
    v = b("add", b("mul", v, full(0.999, v)), b("mul", b("mul", g, g), full(0.001, g)))
    return [b("sub", w, b("div", m, b("add", b("sqrt", v), full(1e-8, v)))), m, v]


def _cases() -> list[Case]:
    wide = (4096, 1024)
    bodies: dict[str, tuple[list[Arg], Callable[..., list[ir.Value]]]] = {
        "gelu": ([_arg((8192, 3072), "bf16"), _arg((3072,), "bf16")], _gelu),
        "softmax": ([_arg(wide)], lambda x: [reductions._softmax(x, False)]),
        "layer norm": ([_arg(wide), _arg(wide[1:]), _arg(wide[1:]), _arg(wide)], reductions._layer_norm),
        "long rows": ([_arg((512, 50257))], lambda x: [reductions._softmax(x, True)]),
        "dropout": ([_arg((2,), "i64"), _arg(wide)], _dropout),
        "transposed": ([_arg(wide, strides=(1, 4096)), _arg(wide)], lambda x, y: [b("add", x, y)]),
        "statistics": ([_arg((65536, 96)), _arg((96,))], _statistics),
        "sum": ([_arg(wide, "f16")], lambda x: [reduce("sum", x, 0, 1), reduce("max", x, 0, 1)]),
        "update": ([_arg(wide)] * 4, _moments),
        "double": ([_arg(wide, "f64")], lambda x: [reductions._softmax(x, False), reduce("sum", x, 0)]),
    }  # fmt: skip
    return [make(name, args, body) for name, (args, body) in bodies.items()]


@pytest.mark.parametrize("arch", [90])
def test_kernels_compile(arch: int) -> None:
    kernels = {name: k for case in _cases() for name, k in compile_case(case).triton.items()}
    code = compile_kernels([(k, 0) for k in kernels.values()], arch)
    assert len(code) == len(kernels)
    spilled = {name: c.spills for name, c in code.items() if c.spills}
    assert not spilled, spilled
    assert all(0 < c.registers <= 255 for c in code.values())

"""Elementwise math on scalar and vector values, for the CPU code generator.

    emit(e, "tanh", ["%x"], "vector<16xf32>")  ->  "%v23"

float32 is expanded into `arith` and `math` operations that are one instruction each, because
LLVM does not vectorize calls of libm; float64 calls libm for each lane. A kernel's module needs
`declarations(e.externals)` besides its functions. Accuracy: `docs/vector-math.md`.

    arith           arithmetic on one scalar or vector type: short names over `Emitter` for long formulas
    basic           roots, rounding, signs and remainders: exact functions, or a few instructions
    coefficients    polynomial coefficients, lowest degree first
    double          float64: the C library's functions lane by lane, and functions composed from them
    error_function  erf in float32, without branch or division
    exponential     exp and its family in float32: exp, exp2, expm1, sigmoid, sinh, cosh, tanh
    libm            calls of the C library's math functions, lane by lane
    logarithm       log, log2, log10, log1p in float32
    trigonometric   sin, cos, tan and their inverses in float32
    wide            float32 functions that are computed in float64, which keeps their code short
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..ssa_text import Emitter
from . import basic, double, error_function, exponential, logarithm, trigonometric, wide
from .arith import Arith
from .libm import call, declarations

__all__ = ["BINARY", "NAMES", "UNARY", "declarations", "emit"]

_Emit = Callable[..., str]

_SHARED: dict[str, _Emit] = {
    "sqrt": basic.sqrt,
    "rsqrt": basic.rsqrt,
    "reciprocal": basic.reciprocal,
    "floor": basic.floor,
    "ceil": basic.ceil,
    "trunc": basic.trunc,
    "round": basic.round,
    "sign": basic.sign,
    "abs": basic.abs,
    "copysign": basic.copysign,
}

_FLOAT32: dict[str, _Emit] = _SHARED | {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "tanh": exponential.tanh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "erf": error_function.erf,
    "erfc": wide.erfc,
    "erfinv": wide.erfinv,
    "asinh": wide.asinh,
    "acosh": wide.acosh,
    "atanh": wide.atanh,
    "pow": wide.pow,
    "fmod": basic.fmod_float32,
    "remainder": basic.remainder_float32,
}

_FLOAT64: dict[str, _Emit] = _SHARED | {
    "sigmoid": double.sigmoid,
    "erfinv": double.erfinv,
    "remainder": double.remainder,
}

BINARY = frozenset({"pow", "atan2", "fmod", "remainder", "copysign"})
UNARY = frozenset(_FLOAT32) - BINARY
NAMES = UNARY | BINARY

_TYPE = re.compile(r"(vector<\d+x)?f(32|64)(?(1)>)")


def emit(e: Emitter, name: str, args: list[str], ty: str) -> str:
    """Append the operations that compute the function `name`, and return the result's SSA name.

    Args:
        e: the emitter.
        name: the function.
        args: the SSA names of its operands, all of type `ty`.
        ty: `f32`, `f64`, `vector<Nxf32>` or `vector<Nxf64>`; the caller converts float16 and bfloat16.

    Raises:
        ValueError: there is no such function, or it has another number of operands.
    """
    if name not in NAMES:
        raise ValueError(f"'{name}' is not a vector math function; known: {sorted(NAMES)}")
    arity = 2 if name in BINARY else 1
    if len(args) != arity:
        raise ValueError(f"'{name}' takes {arity} operand(s), got {len(args)}")
    if not _TYPE.fullmatch(ty):
        raise ValueError(
            f"'{name}' is emitted on f32, f64 and one-dimensional vectors of them, not on {ty}: "
            "convert the operands first"
        )
    m = Arith(e, ty)
    table = _FLOAT32 if m.scalar == "f32" else _FLOAT64
    if name in table:
        return table[name](m, *args)
    return call(m, name, args)

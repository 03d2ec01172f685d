"""Vector math: accuracy over all of float32, special values, float64, the scalar path.

Errors are in units in the last place of the correctly rounded float32 result, whose reference
is PyTorch's float64 function. `pytest -s` prints the table.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch

from gflow.compiler.emit.cpu.language import vmath
from gflow.compiler.emit.cpu.language.ssa_text import Emitter
from gflow.dialects.mlir import PassManager, execution_engine, ir

PIPELINE = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,"
    "convert-vector-to-llvm,convert-to-llvm,reconcile-unrealized-casts)"
)

# Largest error allowed in float32, in ulp; measured values and methods are in
# docs/vector-math.md. 0.5 is a correctly rounded result.
MAX_ULP = {
    "exp": 1.0,
    "exp2": 1.0,
    "expm1": 1.6,
    "sigmoid": 2.5,
    "sinh": 1.75,
    "cosh": 1.5,
    "tanh": 2.0,
    "log": 1.0,
    "log2": 1.1,
    "log10": 1.0,
    "log1p": 1.6,
    "sin": 1.6,
    "cos": 1.6,
    "tan": 2.4,
    "asin": 2.0,
    "acos": 1.5,
    "atan": 1.5,
    "asinh": 0.51,
    "acosh": 0.51,
    "atanh": 0.51,
    "erf": 1.1,
    "erfc": 0.55,
    "erfinv": 0.6,
    "rsqrt": 1.5,
    "sqrt": 0.501,
    "reciprocal": 0.501,
    "floor": 0.0,
    "ceil": 0.0,
    "trunc": 0.0,
    "round": 0.0,
    "sign": 0.0,
    "abs": 0.0,
    "pow": 0.51,
    "atan2": 1.6,
    "fmod": 0.0,
    "remainder": 0.0,
    "copysign": 0.0,
}

REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, {"asin": "arcsin"}.get(name, name)) for name in vmath.NAMES
}

TYPES = ("vector<16xf32>", "f32", "vector<8xf64>", "f64")
INF, NAN = math.inf, math.nan


def _symbol(name: str, ty: str) -> str:
    return f"{name}_{re.sub(r'[<>]', '_', ty)}"


def kernel(name: str, ty: str, body: Callable[[Emitter, list[str]], str], arity: int) -> Emitter:
    """`out[i] = body(in0[i], in1[i])` as `llvm.func @name(words)`: in0, in1, out, count."""
    scalar = re.sub(r"vector<\d+x|>", "", ty)
    step = int(ty[7 : ty.rindex("x")]) if ty != scalar else 1
    e = Emitter()
    pointers = []
    for k in range(4):
        address = e(f"llvm.getelementptr %words[{k}] : (!llvm.ptr) -> !llvm.ptr, i64")
        kind = "!llvm.ptr" if k < 3 else "i64"
        pointers.append(e(f"llvm.load {address} : !llvm.ptr -> {kind}"))
    zero, width = e.const(0, "i64"), e.const(step, "i64")
    e.line(f"scf.for %i = {zero} to {pointers[3]} step {width} : i64 {{")
    with e.indented():
        at = [
            e(f"llvm.getelementptr {p}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {scalar}")
            for p in pointers[:3]
        ]
        align = f"{{alignment = {4 if scalar == 'f32' else 8} : i64}}"
        values = [e(f"llvm.load {p} {align} : !llvm.ptr -> {ty}") for p in at[:arity]]
        e.line(f"llvm.store {body(e, values)}, {at[2]} {align} : {ty}, !llvm.ptr")
    e.line("}")
    return e


class Library:
    """Kernels compiled into one module."""

    def __init__(self, kernels: dict[str, Emitter]) -> None:
        externals = set().union(*(e.externals for e in kernels.values()))
        functions = [
            f"  llvm.func @{name}(%words: !llvm.ptr) {{\n{e.text()}\n    llvm.return\n  }}"
            for name, e in kernels.items()
        ]
        text = "\n".join(["module {", *vmath.declarations(externals), *functions, "}"])
        with ir.Context():
            module = ir.Module.parse(text)
            PassManager.parse(PIPELINE).run(module.operation)
            self._engine = execution_engine(module, opt_level=2)

    def __call__(self, name: str, *args: torch.Tensor) -> torch.Tensor:
        count = args[0].numel()
        assert count % 16 == 0
        tensors = [a.contiguous() for a in args]
        out = torch.empty_like(tensors[0])
        pointers = [t.data_ptr() for t in (tensors[0], tensors[-1], out)]
        words = (ctypes.c_int64 * 4)(*pointers, count)
        argument = ctypes.c_void_p(ctypes.addressof(words))
        packed = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        address = self._engine.raw_lookup(name)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(packed))
        return out


def _gelu_erf(e: Emitter, args: list[str]) -> str:
    ty = "vector<16xf32>"
    scaled = e(f"arith.mulf {args[0]}, {e.const(math.sqrt(0.5), ty)} : {ty}")
    one_more = e(f"arith.addf {vmath.emit(e, 'erf', [scaled], ty)}, {e.const(1.0, ty)} : {ty}")
    half = e(f"arith.mulf {args[0]}, {e.const(0.5, ty)} : {ty}")
    return e(f"arith.mulf {half}, {one_more} : {ty}")


def _gelu_tanh(e: Emitter, args: list[str]) -> str:
    ty = "vector<16xf32>"
    x = args[0]
    square = e(f"arith.mulf {x}, {x} : {ty}")
    factor = e(f"math.fma {square}, {e.const(0.044715, ty)}, {e.const(1.0, ty)} : {ty}")
    scaled = e(f"arith.mulf {x}, {e.const(math.sqrt(2 / math.pi), ty)} : {ty}")
    inner = e(f"arith.mulf {scaled}, {factor} : {ty}")
    one_more = e(f"arith.addf {vmath.emit(e, 'tanh', [inner], ty)}, {e.const(1.0, ty)} : {ty}")
    half = e(f"arith.mulf {x}, {e.const(0.5, ty)} : {ty}")
    return e(f"arith.mulf {half}, {one_more} : {ty}")


def _silu(e: Emitter, args: list[str]) -> str:
    ty = "vector<16xf32>"
    return e(f"arith.mulf {args[0]}, {vmath.emit(e, 'sigmoid', args, ty)} : {ty}")


COMPOSED = {
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}


@pytest.fixture(scope="module")
def library() -> Library:
    kernels = {}
    for ty in TYPES:
        for name in sorted(vmath.NAMES):
            arity = 2 if name in vmath.BINARY else 1
            kernels[_symbol(name, ty)] = kernel(
                name, ty, lambda e, args, n=name, t=ty: vmath.emit(e, n, args, t), arity
            )
    for name, body in COMPOSED.items():
        kernels[name] = kernel(name, "vector<16xf32>", body, 1)
    return Library(kernels)


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, tuple[float, float, float]]]:
    rows: dict[str, tuple[float, float, float]] = {}
    yield rows
    print("\n\nlargest error in float32, ulp of the true result; steps from PyTorch's")
    print(f"{'function':<12}{'gflow':>8}{'PyTorch':>10}{'apart':>8}")
    for name, (ours, theirs, apart) in rows.items():
        print(f"{name:<12}{ours:>8.3f}{theirs:>10.3f}{apart:>8.0f}")


def sweep() -> torch.Tensor:
    """2^20 float32 of all magnitudes and both signs, and what lies around special points."""
    stride = np.arange(0, 2**32, 4099, dtype=np.uint64)
    anchors = np.array(
        [0.0, 1.0, 0.5, 2.0, 0.92, 3.95, 9.1, 10.05, 88.722, 89.0, 103.97, 105.0, 17.3, 18.0]
        + [127.0, 128.0, 149.0, 150.0, 151.0, 1e5, 2.0**-126, 2.0**-12, 2.0**25, 3.4e38, INF]
        + [math.sqrt(0.5), math.sqrt(2), 0.5, 1.5, 2.5, 3.5, 2.0**22, 2.0**23, 2.0**24, 1.5e38]
        + [k * math.pi / 4 for k in range(1, 65)],
        dtype=np.float32,
    )
    around = anchors.view(np.uint32).astype(np.int64)[:, None] + np.arange(-64, 65)
    around = around[(around >= 0) & (around <= 0x7F800000)].astype(np.uint64)
    patterns = np.concatenate([stride, around, around | 0x80000000])
    patterns = np.concatenate([patterns, np.full(-len(patterns) % 16, 0x7FC00000, np.uint64)])
    dense = np.linspace(-30, 30, 2**18, dtype=np.float32)
    values = np.concatenate([patterns.astype(np.uint32).view(np.float32), dense])
    return torch.from_numpy(values)


SWEEP = sweep()


def ulp_error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|got - exact| in the spacing of float32 at `exact`, which is float64."""
    rounded = exact.to(torch.float32)
    exponent = (exact.view(torch.int64) >> 52 & 0x7FF).clamp(min=1023 - 126)
    spacing = (exponent - 23 << 52).view(torch.float64)
    error = (got.double() - exact).abs() / spacing
    same = (got == rounded) & torch.isinf(rounded) | (got.isnan() & exact.isnan())
    wrong_kind = (got.isnan() != exact.isnan()) | (torch.isinf(got) & ~torch.isinf(rounded))
    # An exact value past the largest float32 that still rounds to it, or one step below infinity.
    error = torch.where(torch.isinf(exact) & ~same, INF, error)
    return torch.where(same, 0.0, torch.where(wrong_kind & ~same, INF, error))


def steps_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many float32 values lie between; 0 between NaNs."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int32).long()
        return torch.where(bits < 0, -(2**31) - bits, bits)

    apart = (ordered(a) - ordered(b)).abs()
    return torch.where(a.isnan() & b.isnan(), 0, apart)


def describe(got: torch.Tensor, exact: torch.Tensor, error: torch.Tensor, *args: torch.Tensor):
    worst = int(error.nan_to_num(INF).argmax())
    at = ", ".join(repr(float(a[worst])) for a in args)
    return f"at ({at}): got {float(got[worst])!r}, expected {float(exact[worst])!r}"


def check(name: str, got: torch.Tensor, *args: torch.Tensor) -> tuple[float, float, float]:
    exact = REFERENCE[name](*(a.double() for a in args))
    error = ulp_error(got, exact)
    worst = float(error.max())
    assert worst <= MAX_ULP[name], f"{name}: {worst} ulp {describe(got, exact, error, *args)}"
    zero = (exact == 0) & (got == 0)
    assert torch.equal(torch.signbit(got[zero]), torch.signbit(exact[zero])), f"{name}: sign of 0"
    # Apart from where PyTorch's float32 overflows early (sinh, cosh) or flushes denormals
    # (sigmoid), both are close to the true result, and so to each other.
    theirs = REFERENCE[name](*args)
    their_error = ulp_error(theirs, exact)
    apart = int(steps_apart(got, theirs)[their_error < 2].max())
    assert apart <= 3, f"{name}: {apart} float32 steps from PyTorch's result"
    return worst, float(their_error.max()), apart


@pytest.mark.parametrize("name", sorted(vmath.UNARY))
def test_unary_float32_over_the_whole_range(name, library, report):
    got = library(_symbol(name, "vector<16xf32>"), SWEEP)
    report[name] = check(name, got, SWEEP)


# Zeros, units, halves, odd and even integers, denormals, extremes, infinities, NaN.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0, -2.0, 3.0, -3.0, 2.0**24 - 1]
SPECIAL += [2.0**24, 2.0**31, -(2.0**24) + 1, 1e-45, -1e-45, 2.0**-126, -(2.0**-126), 1e-38]
SPECIAL += [3.4e38, -3.4e38, 0.1, -0.1, 1 + 2.0**-23, 1 - 2.0**-24, -1 - 2.0**-23, 1e10]
SPECIAL += [INF, -INF, NAN]


@cache
def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values, and random pairs of similar and of any magnitude."""
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    a, b = (grid.reshape(-1) for grid in torch.meshgrid(special, special, indexing="ij"))
    generator = torch.Generator().manual_seed(7)
    n = 1 << 17
    near = torch.randn(2, n, generator=generator, dtype=torch.float64) * 3
    bits = torch.randint(0, 2**32, (2, n), generator=generator, dtype=torch.int64)
    wild = bits.to(torch.int32).view(torch.float32).double()
    powers = torch.stack([near[0].abs(), near[1] * 20])  # results over all of pow's range
    close = torch.stack([near[0], near[0] * near[1].round()])  # ratios close to integers
    mixed = torch.cat([near, wild, powers, close, close.flip(0)], dim=1).to(dtype)
    x, y = torch.cat([a, mixed[0]]), torch.cat([b, mixed[1]])
    rest = x.numel() % 16
    return (x[: x.numel() - rest].contiguous(), y[: y.numel() - rest].contiguous())


@pytest.mark.parametrize("name", sorted(vmath.BINARY - {"fmod", "remainder"}))
def test_binary_float32(name, library, report):
    x, y = pairs(torch.float32)
    got = library(_symbol(name, "vector<16xf32>"), x, y)
    report[name] = check(name, got, x, y)


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_float32(name, library, report):
    """fmod is exact. The reference is C's: PyTorch's own vectorized one is NaN or loses digits
    where the quotient is large. remainder adds the divisor, rounded, where the signs differ."""
    x, y = pairs(torch.float32)
    got = library(_symbol(name, "vector<16xf32>"), x, y)
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))
    if name == "remainder":
        expected = torch.where(
            (expected != 0) & ((expected < 0) != (y < 0)), expected + y, expected
        )
    assert torch.equal(got.nan_to_num(nan=12345.0), expected.nan_to_num(nan=12345.0))
    assert torch.equal(torch.signbit(got[got == 0]), torch.signbit(expected[got == 0]))
    usual = (x / y).abs() < 2.0**22
    theirs = REFERENCE[name](x, y)
    report[name] = (0.0, NAN, float(steps_apart(got, theirs)[usual].max()))


def test_remainder_takes_the_divisors_sign(library):
    x = torch.tensor([5.0, -5.0, 5.0, -5.0] * 4)
    y = torch.tensor([3.0, 3.0, -3.0, -3.0] * 4)
    got = library(_symbol("remainder", "vector<16xf32>"), x, y)
    assert got[:4].tolist() == [5 % 3, -5 % 3, 5 % -3, -5 % -3]


def test_sin_and_cos_stay_within_one(library):
    for name in ("sin", "cos"):
        got = library(_symbol(name, "vector<16xf32>"), SWEEP)
        assert float(got.nan_to_num().abs().max()) <= 1.0


@pytest.mark.parametrize("name", sorted(vmath.NAMES))
def test_a_scalar_and_a_lane_agree(name, library):
    """Bit for bit: no lane's result depends on the type or on its neighbours."""
    args = pairs(torch.float32) if name in vmath.BINARY else (SWEEP[::16].contiguous(),)
    args = tuple(a[: a.numel() // 16 * 16].contiguous() for a in args)
    vector = library(_symbol(name, "vector<16xf32>"), *args)
    scalar = library(_symbol(name, "f32"), *args)
    assert torch.equal(vector.nan_to_num(nan=12345.0), scalar.nan_to_num(nan=12345.0))


@pytest.mark.parametrize("lanes", [1, 4, 8, 32])
def test_other_widths(lanes, library):
    ty = f"vector<{lanes}xf32>"
    names = ["exp", "log", "tanh", "sin", "erfc", "fmod"]
    other = Library(
        {
            name: kernel(
                name,
                ty,
                lambda e, args, n=name: vmath.emit(e, n, args, ty),
                2 if name in vmath.BINARY else 1,
            )
            for name in names
        }
    )
    for name in names:
        args = pairs(torch.float32) if name in vmath.BINARY else (SWEEP[::16].contiguous(),)
        args = tuple(a[: a.numel() // 32 * 32] for a in args)
        expected = library(_symbol(name, "vector<16xf32>"), *args)
        got = other(name, *args)
        assert torch.equal(got.nan_to_num(nan=12345.0), expected.nan_to_num(nan=12345.0)), name


@cache
def _float64_inputs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    near = torch.randn(1 << 14, generator=generator, dtype=torch.float64) * 2
    unit = torch.rand(1 << 14, generator=generator, dtype=torch.float64) * 2 - 1
    ends = 1 - 2.0 ** -torch.linspace(1, 53, 512, dtype=torch.float64)
    bits = torch.randint(-(2**62), 2**62, (1 << 14,), generator=generator)
    special = torch.tensor([*SPECIAL, 5e-324, 1e308, -1e308, 709.7, -745.1], dtype=torch.float64)
    values = torch.cat([near, unit, ends, -ends, bits.view(torch.float64), special])
    return torch.cat([values, torch.zeros(-values.numel() % 16, dtype=torch.float64)])


def _assert_close_float64(name: str, got: torch.Tensor, expected: torch.Tensor, *args) -> None:
    error = (got - expected).abs() / expected.abs().clamp(min=2.0**-1022)
    same = (got == expected) | (got.isnan() & expected.isnan())
    error = torch.where(same, 0.0, error).nan_to_num(INF)
    worst = float(error.max())
    limit = 2.0**-49 if MAX_ULP[name] else 0.0
    assert worst <= limit, f"{name}: relative {worst} {describe(got, expected, error, *args)}"


@pytest.mark.parametrize("ty", ["vector<8xf64>", "f64"])
@pytest.mark.parametrize("name", sorted(vmath.NAMES))
def test_float64(name, ty, library):
    x = _float64_inputs()
    args = pairs(torch.float64) if name in vmath.BINARY else (x,)
    got = library(_symbol(name, ty), *args)
    _assert_close_float64(name, got, REFERENCE[name](*args), *args)


# name -> reference, and the largest error allowed: in ulp of the result, or in 2^-24 of |x|
# where 1 + erf or 1 + tanh cancels, in PyTorch's float32 as here.
COMPOSED_REFERENCE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "gelu_erf": (torch.nn.functional.gelu, 4.0, 2.0),
    "gelu_tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 4.0, 2.0),
    "silu": (torch.nn.functional.silu, 3.0, 0.0),
}


@pytest.mark.parametrize("name", sorted(COMPOSED))
def test_composed(name, library):
    reference, ulps, scaled = COMPOSED_REFERENCE[name]
    x = torch.linspace(-20, 20, 1 << 18)
    got, exact = library(name, x), reference(x.double())
    error = (got.double() - exact).abs()
    allowed = ulps * 2.0**-23 * exact.abs() + scaled * 2.0**-24 * x.abs()
    assert bool((error <= allowed + 2.0**-149).all()), describe(got, exact, error - allowed, x)
    assert float((got - reference(x)).abs().max()) <= 4 * 2.0**-24 * 20


def test_wrong_use_is_named():
    e = Emitter()
    with pytest.raises(ValueError, match="'cbrt' is not a vector math function"):
        vmath.emit(e, "cbrt", ["%x"], "f32")
    with pytest.raises(ValueError, match="takes 2 operand"):
        vmath.emit(e, "pow", ["%x"], "f32")
    for ty in ("f16", "vector<16xbf16>", "vector<4x4xf32>", "vector<16xf32", "i32"):
        with pytest.raises(ValueError, match="convert the operands first"):
            vmath.emit(e, "exp", ["%x"], ty)
    with pytest.raises(ValueError, match="no declaration is known"):
        vmath.declarations({"gflow_lanes16_nothing"})

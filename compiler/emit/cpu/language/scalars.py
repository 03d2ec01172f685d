"""Elementwise ops as MLIR text, on scalars or vectors.

Values in registers have a register type: half precision is held as f32 (and rounded where the IR rounds), unsigned
integers as signless ones, i1 as i1.
"""

from __future__ import annotations

import struct
from typing import Any

from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import COMBINED_BY
from gflow.dialects.program.processor import BF16_LINE, NO_BF16_LINE
from gflow.dialects.types import FLOATS, HALVES, INTEGERS

from . import vmath
from .ssa_text import Emitter


def register_dtype(dtype: str) -> str:
    """The element type that holds a `dtype` value in a register."""
    if dtype in HALVES:
        return "f32"
    return dtype.removeprefix("u")


def shaped(dtype: str, lanes: int) -> str:
    """The MLIR type of `lanes` values of a register type: `vector<16xf32>`, or `f32` for 0 lanes (a scalar)."""
    return f"vector<{lanes}x{dtype}>" if lanes else dtype


def register_type(dtype: str, lanes: int) -> str:
    """The MLIR type of `lanes` values of an element type in registers; 0 lanes: a scalar."""
    return shaped(register_dtype(dtype), lanes)


def is_unsigned(dtype: str) -> bool:
    """Whether a dtype compares and converts as unsigned; booleans do."""
    return dtype.startswith("ui") or dtype == "i1"


def round_half(e: Emitter, x: str, dtype: str, lanes: int) -> str:
    """`x` (f32) rounded to f16 or bf16, to nearest even, as f32."""
    f32 = shaped("f32", lanes)
    if dtype == "f16":
        narrow = e(f"arith.truncf {x} : {f32} to {shaped('f16', lanes)}")
        return e(f"arith.extf {narrow} : {shaped('f16', lanes)} to {f32}")
    bits = bf16_bits(e, x, lanes)
    return from_bf16_bits(e, bits, lanes)


def from_bf16_bits(e: Emitter, bits: str, lanes: int) -> str:
    """The bfloat16 whose bits are the lower half of an i32, the rest of which is 0, as f32."""
    i32 = shaped("i32", lanes)
    wide = e(f"arith.shli {bits}, {e.const(16, i32)} : {i32}")
    found = e(f"arith.bitcast {wide} : {i32} to {shaped('f32', lanes)}")
    e.bf16_values[found] = bits
    return found


def bf16_bits(e: Emitter, x: str, lanes: int) -> str:
    """The bfloat16 nearest to `x` (f32), as the low 16 bits of an i32; NaN stays NaN."""
    if x in e.bf16_values:
        return e.bf16_values[x]
    if x in e.exact:
        i32 = shaped("i32", lanes)
        raw = e(f"arith.bitcast {x} : {shaped('f32', lanes)} to {i32}")
        return e(f"arith.shrui {raw}, {e.const(16, i32)} : {i32}")
    return _rounded_by_avx512(e, x) if lanes == _LANES else e(_rounded(e, x, lanes))


#: lanes of AVX-512
_LANES = 16
#: the exponent of a float32
_EXPONENTS = 0x7F800000
#: the lowest bit of the exponent of a float32 and of a bfloat16
_EXPONENT, _EXPONENT_OF_HALF = 0x00800000, 0x0080


def _rounded(e: Emitter, x: str, lanes: int) -> str:
    """The last op of `bf16_bits` by integer arithmetic, after those before it."""
    i32, f32 = shaped("i32", lanes), shaped("f32", lanes)
    raw = e(f"arith.bitcast {x} : {f32} to {i32}")
    high = e(f"arith.shrui {raw}, {e.const(16, i32)} : {i32}")
    odd = e(f"arith.andi {high}, {e.const(1, i32)} : {i32}")
    bias = e(f"arith.addi {odd}, {e.const(0x7FFF, i32)} : {i32}")
    rounded = e(f"arith.shrui {e(f'arith.addi {raw}, {bias} : {i32}')}, {e.const(16, i32)} : {i32}")
    nan = e(f"arith.cmpf uno, {x}, {x} : {f32}")
    return f"arith.select {nan}, {e.const(0x7FC0, i32)}, {rounded} : {_pred(lanes)}{i32}"


def _rounded_by_avx512(e: Emitter, x: str) -> str:
    """`bf16_bits` by VCVTNEPS2BF16 where the processor has it, which takes subnormal numbers for zeros. They are
    rounded with an exponent of one more, at which numbers are as far apart, and which is taken off again."""
    f32, i32, i16, halves = (shaped(ty, _LANES) for ty in ("f32", "i32", "i16", "bf16"))
    found = e.fresh()
    with e.marked(BF16_LINE):
        raw = e(f"arith.bitcast {x} : {f32} to {i32}")
        exponent = e(f"arith.andi {raw}, {e.const(_EXPONENTS, i32)} : {i32}")
        small = e(f"arith.cmpi eq, {exponent}, {e.const(0, i32)} : {i32}")
        more = e(f"arith.ori {raw}, {e.const(_EXPONENT, i32)} : {i32}")
        normal = e(f"arith.bitcast {select(e, small, more, raw, i32, _LANES)} : {i32} to {f32}")
        made = e(
            f'llvm.call_intrinsic "llvm.x86.avx512bf16.cvtneps2bf16.512"({normal}) : ({f32}) -> {halves}'
        )
        bits = e(f"llvm.bitcast {made} : {halves} to {i16}")
        less = e(f"arith.subi {bits}, {e.const(_EXPONENT_OF_HALF, i16)} : {i16}")
        e.line(
            f"{found} = arith.extui {select(e, small, less, bits, i16, _LANES)} : {i16} to {i32}"
        )
    with e.marked(NO_BF16_LINE):
        e.line(f"{found} = {_rounded(e, x, _LANES)}")
    return found


def _pred(lanes: int) -> str:
    """The type of the condition in `arith.select`'s assembly, which is written for vectors only."""
    return f"{shaped('i1', lanes)}, " if lanes else ""


def select(e: Emitter, pred: str, a: str, b: str, ty: str, lanes: int) -> str:
    """`arith.select`: `a` where `pred` is true, `b` elsewhere."""
    return e(f"arith.select {pred}, {a}, {b} : {_pred(lanes)}{ty}")


def convert(e: Emitter, x: str, src: str, dst: str, lanes: int) -> str:
    """`x` of element type `src` as `dst`, by PyTorch's rules."""
    if src == dst:
        return x
    rs, rd = register_dtype(src), register_dtype(dst)
    ts, td = shaped(rs, lanes), shaped(rd, lanes)
    if dst == "i1":
        zero = e.const(0, ts)
        if src in FLOATS:
            return e(f"arith.cmpf une, {x}, {zero} : {ts}")
        return e(f"arith.cmpi ne, {x}, {zero} : {ts}")
    if src in FLOATS and dst in FLOATS:
        if rs != rd:
            x = e(f"arith.{'extf' if rd == 'f64' else 'truncf'} {x} : {ts} to {td}")
        return round_half(e, x, dst, lanes) if dst in HALVES else x
    if src in FLOATS:
        wide = "i64" if rd == "i64" else "i32"
        value = e(f"arith.fptosi {x} : {ts} to {shaped(wide, lanes)}")
        return value if rd == wide else e(f"arith.trunci {value} : {shaped(wide, lanes)} to {td}")
    if dst in FLOATS:
        x = e(f"arith.{'uitofp' if is_unsigned(src) else 'sitofp'} {x} : {ts} to {td}")
        return round_half(e, x, dst, lanes) if dst in HALVES else x
    bits_s, bits_d = int(rs[1:]), int(rd[1:])
    if bits_s == bits_d:
        return x
    op = "trunci" if bits_d < bits_s else "extui" if is_unsigned(src) else "extsi"
    return e(f"arith.{op} {x} : {ts} to {td}")


_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def compare(e: Emitter, predicate: str, a: str, b: str, dtype: str, lanes: int) -> str:
    """`arith.cmpf` or `arith.cmpi`, by dtype. predicate: eq, ne, lt, le, gt or ge."""
    ty = register_type(dtype, lanes)
    if dtype in FLOATS:
        return e(f"arith.cmpf {_FLOAT_PREDICATES[predicate]}, {a}, {b} : {ty}")
    if predicate in ("eq", "ne"):
        return e(f"arith.cmpi {predicate}, {a}, {b} : {ty}")
    return e(f"arith.cmpi {'u' if is_unsigned(dtype) else 's'}{predicate}, {a}, {b} : {ty}")


def elementwise(
    e: Emitter,
    name: str,
    args: list[str],
    arg_dtypes: list[str],
    dtype: str,
    attrs: dict[str, Any],
    lanes: int,
) -> str:
    """The op `name` on register values; returns the result's SSA name."""
    if name == "convert":
        return convert(e, args[0], arg_dtypes[0], dtype, lanes)
    if name == "compare":
        return compare(e, attrs["predicate"], args[0], args[1], arg_dtypes[0], lanes)
    ty = register_type(dtype, lanes)
    if name == "select":
        found = select(e, args[0], args[1], args[2], ty, lanes)
        _note_exact(e, found, dtype, args[1:])
        return found
    operand_ty = register_type(arg_dtypes[0], lanes)
    if name == "is_nan":
        return e(f"arith.cmpf uno, {args[0]}, {args[0]} : {operand_ty}")
    if name == "is_inf":
        magnitude = e(f"math.absf {args[0]} : {operand_ty}")
        return e(f"arith.cmpf oeq, {magnitude}, {e.const(float('inf'), operand_ty)} : {operand_ty}")
    table = OPS[name].cpu
    source = arg_dtypes[0]
    kind = (
        "f"
        if source in FLOATS
        else "b"
        if source == "i1"
        else "u"
        if source.startswith("ui")
        else "s"
    )
    rule = table.get(kind) or table["*"]
    if rule.startswith("vmath:"):
        value = vmath.emit(e, rule.removeprefix("vmath:"), args, operand_ty)
    elif rule.startswith("int:"):
        value = _INTEGER[rule.removeprefix("int:")](e, args, source, lanes)
    else:
        value = e(rule.format(*args, t=operand_ty))
    if name in _EXACT and _note_exact(e, value, dtype, args) and dtype == "bf16":
        return value
    return round_half(e, value, dtype, lanes) if dtype in HALVES else value


#: ops whose result is a bfloat16 value if their operands are
_EXACT = frozenset(
    name for name, op in OPS.items() if op.category == "elementwise" and op.amp == "clear"
)


def _note_exact(e: Emitter, x: str, dtype: str, args: list[str]) -> bool:
    """Note that an exact op's result is a bfloat16 value if its operands are, and return whether it is."""
    known = dtype in ("f32", "bf16") and all(a in e.bf16_values or a in e.exact for a in args)
    if known:
        e.exact.add(x)
    return known


def constant(e: Emitter, value: float | int | bool, dtype: str, lanes: int) -> str:
    """A constant of an element type in registers."""
    found = e.const(value, register_type(dtype, lanes))
    if dtype in ("f32", "bf16") and not struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF:
        e.exact.add(found)
    return found


def _div_parts(e: Emitter, args: list[str], dtype: str, lanes: int) -> tuple[str, str, str]:
    """A divisor that is neither 0 nor -1 (which overflows), and whether the true divisor is 0, and whether it is -1."""
    ty = register_type(dtype, lanes)
    zero = e(f"arith.cmpi eq, {args[1]}, {e.const(0, ty)} : {ty}")
    safe = select(e, zero, e.const(1, ty), args[1], ty, lanes)
    if is_unsigned(dtype):
        return zero, safe, ""
    minus = e(f"arith.cmpi eq, {args[1]}, {e.const(-1, ty)} : {ty}")
    return zero, select(e, minus, e.const(1, ty), safe, ty, lanes), minus


def _div(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    ty = register_type(dtype, lanes)
    zero, safe, minus = _div_parts(e, args, dtype, lanes)
    if is_unsigned(dtype):
        q = e(f"arith.divui {args[0]}, {safe} : {ty}")
    else:
        q = e(f"arith.divsi {args[0]}, {safe} : {ty}")
        negated = e(f"arith.subi {e.const(0, ty)}, {args[0]} : {ty}")
        q = select(e, minus, negated, q, ty, lanes)
    return select(e, zero, e.const(0, ty), q, ty, lanes)


def _fmod(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    ty = register_type(dtype, lanes)
    zero, safe, _ = _div_parts(e, args, dtype, lanes)
    r = e(f"arith.{'remui' if is_unsigned(dtype) else 'remsi'} {args[0]}, {safe} : {ty}")
    return select(e, zero, e.const(0, ty), r, ty, lanes)


def _remainder(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    r = _fmod(e, args, dtype, lanes)
    if is_unsigned(dtype):
        return r
    ty = register_type(dtype, lanes)
    zero = e.const(0, ty)
    nonzero = e(f"arith.cmpi ne, {r}, {zero} : {ty}")
    differ = e(f"arith.cmpi slt, {e(f'arith.xori {r}, {args[1]} : {ty}')}, {zero} : {ty}")
    fix = e(f"arith.andi {nonzero}, {differ} : {shaped('i1', lanes)}")
    return select(e, fix, e(f"arith.addi {r}, {args[1]} : {ty}"), r, ty, lanes)


def _pow(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    """Integer powers by square and multiply, with wrap-around. Negative exponents give 0 except for bases 1 and -1."""
    ty = register_type(dtype, lanes)
    bits = int(register_dtype(dtype)[1:])
    one, zero = e.const(1, ty), e.const(0, ty)
    step, result, base = e.fresh("step"), e.fresh("result"), e.fresh("base")
    power, last, i64 = e.fresh("power"), e.const(bits, "i64"), "i64"
    e.line(
        f"{power}:3 = scf.for {step} = {e.const(0, i64)} to {last} step {e.const(1, i64)} "
        f"iter_args({result} = {one}, {base} = {args[0]}, {step}e = {args[1]}) -> ({ty}, {ty}, {ty}) : i64 {{"
    )
    with e.indented():
        bit = e(f"arith.andi {step}e, {one} : {ty}")
        odd = e(f"arith.cmpi ne, {bit}, {zero} : {ty}")
        grown = select(e, odd, e(f"arith.muli {result}, {base} : {ty}"), result, ty, lanes)
        square = e(f"arith.muli {base}, {base} : {ty}")
        rest = e(f"arith.shrui {step}e, {one} : {ty}")
        e.line(f"scf.yield {grown}, {square}, {rest} : {ty}, {ty}, {ty}")
    e.line("}")
    if is_unsigned(dtype):
        return f"{power}#0"
    minus_one = e.const(-1, ty)
    even = e(f"arith.cmpi eq, {e(f'arith.andi {args[1]}, {one} : {ty}')}, {zero} : {ty}")
    is_one = e(f"arith.cmpi eq, {args[0]}, {one} : {ty}")
    is_minus = e(f"arith.cmpi eq, {args[0]}, {minus_one} : {ty}")
    sign = select(e, even, one, minus_one, ty, lanes)
    special = select(e, is_one, one, select(e, is_minus, sign, zero, ty, lanes), ty, lanes)
    negative = e(f"arith.cmpi slt, {args[1]}, {zero} : {ty}")
    return select(e, negative, special, f"{power}#0", ty, lanes)


def _shift(op: str) -> Any:
    def emit(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
        ty = register_type(dtype, lanes)
        bits = int(register_dtype(dtype)[1:])
        out = e(f"arith.cmpi uge, {args[1]}, {e.const(bits, ty)} : {ty}")
        amount = select(e, out, e.const(0, ty), args[1], ty, lanes)
        arithmetic = op == "shift_right" and not is_unsigned(dtype)
        name = "shli" if op == "shift_left" else "shrsi" if arithmetic else "shrui"
        shifted = e(f"arith.{name} {args[0]}, {amount} : {ty}")
        beyond = (
            e(f"arith.shrsi {args[0]}, {e.const(bits - 1, ty)} : {ty}")
            if arithmetic
            else e.const(0, ty)
        )
        return select(e, out, beyond, shifted, ty, lanes)

    return emit


def _not(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    ty = register_type(dtype, lanes)
    return e(f"arith.xori {args[0]}, {e.const(-1 if dtype != 'i1' else True, ty)} : {ty}")


def _neg(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    ty = register_type(dtype, lanes)
    return e(f"arith.subi {e.const(0, ty)}, {args[0]} : {ty}")


def _abs(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    if is_unsigned(dtype):
        return args[0]
    return e(
        f"arith.maxsi {args[0]}, {_neg(e, args, dtype, lanes)} : {register_type(dtype, lanes)}"
    )


def _sign(e: Emitter, args: list[str], dtype: str, lanes: int) -> str:
    ty = register_type(dtype, lanes)
    one = e.const(1, ty)
    if is_unsigned(dtype):
        return e(f"arith.minui {args[0]}, {one} : {ty}")
    return e(f"arith.minsi {e(f'arith.maxsi {args[0]}, {e.const(-1, ty)} : {ty}')}, {one} : {ty}")


_INTEGER: dict[str, Any] = {
    "div": _div, "fmod": _fmod, "remainder": _remainder, "pow": _pow, "not": _not, "neg": _neg,
    "abs": _abs, "sign": _sign,
    "shift_left": _shift("shift_left"), "shift_right": _shift("shift_right"),
}  # fmt: skip

_IDENTITY: dict[str, float] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def identity(e: Emitter, kind: str, dtype: str, lanes: int) -> str:
    """The identity element of a reduction."""
    ty = register_type(dtype, lanes)
    if kind in _IDENTITY:
        return e.const(_IDENTITY[kind], ty)
    if dtype in FLOATS:
        return e.const(float("-inf") if kind == "max" else float("inf"), ty)
    if dtype == "i1":
        return e.const(kind == "min", ty)
    bits = int(register_dtype(dtype)[1:])
    if is_unsigned(dtype):
        return e.const(0 if kind == "max" else -1, ty)
    low = -(1 << (bits - 1))
    return e.const(low if kind == "max" else -low - 1, ty)


def combine(e: Emitter, kind: str, a: str, b: str, dtype: str, lanes: int) -> str:
    """One step of a reduction."""
    name = COMBINED_BY[kind]
    if dtype == "i1":
        name = {"max": "or", "min": "and", "sum": "or", "prod": "and"}.get(kind, name)
    # partial results of half precision stay in f32
    source = "f32" if dtype in HALVES else dtype
    return elementwise(e, name, [a, b], [source, source], source, {}, lanes)


def horizontal(e: Emitter, kind: str, x: str, dtype: str, lanes: int) -> str:
    """All lanes of a vector combined into a scalar."""
    reg = register_dtype(dtype)
    vector = shaped(reg, lanes)
    if dtype in FLOATS:
        word = {"sum": "add", "prod": "mul", "max": "maximumf", "min": "minimumf"}[kind]
        if kind in ("sum", "prod"):
            start = e.const(0 if kind == "sum" else 1, reg)
            return e(
                f"vector.reduction <{word}>, {x}, {start} fastmath<reassoc> : {vector} into {reg}"
            )
        return e(f"vector.reduction <{word}>, {x} : {vector} into {reg}")
    unsigned = is_unsigned(dtype)
    extreme = "ui" if unsigned else "si"
    words = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}
    word = words.get(kind) or f"{kind}{extreme}"
    return e(f"vector.reduction <{word}>, {x} : {vector} into {reg}")


__all__ = [
    "INTEGERS",
    "combine",
    "convert",
    "elementwise",
    "horizontal",
    "identity",
    "register_dtype",
    "register_type",
    "select",
    "shaped",
]

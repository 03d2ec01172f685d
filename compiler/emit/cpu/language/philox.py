"""Philox 4x32-10 on scalars or vectors, as defined in docs/random.md."""

from __future__ import annotations

from gflow.dialects.types import HALVES

from . import vmath
from .scalars import register_type, round_half, select, shaped
from .ssa_text import Emitter

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def _mulhilo(e: Emitter, a: str, m: int, lanes: int) -> tuple[str, str]:
    """The high and low 32 bits of `a` times `m`, as i64 values below 2^32."""
    i64 = shaped("i64", lanes)
    product = e(f"arith.muli {a}, {e.const(m, i64)} : {i64}")
    high = e(f"arith.shrui {product}, {e.const(32, i64)} : {i64}")
    return high, e(f"arith.andi {product}, {e.const(0xFFFFFFFF, i64)} : {i64}")


def bits(
    e: Emitter, stream: int | str, index: str, seed: str, offset: str, lanes: int
) -> list[str]:
    """The four 32-bit words (as i64 values) of the Philox block that contains element `index`.

    stream: the random op's stream number, as an int or an i64 value.
    """
    i64, mask = shaped("i64", lanes), 0xFFFFFFFF

    def splat(x: str) -> str:
        return e(f"vector.broadcast {x} : i64 to {i64}") if lanes else x

    def low(x: str, ty: str) -> str:
        return e(f"arith.andi {x}, {e.const(mask, ty)} : {ty}")

    block = e(f"arith.shrui {index}, {e.const(2, i64)} : {i64}")
    c = [
        low(block, i64),
        e(f"arith.shrui {block}, {e.const(32, i64)} : {i64}"),
        e.const(stream & mask, i64) if isinstance(stream, int) else splat(low(stream, "i64")),
        splat(low(offset, "i64")),
    ]
    k0, k1 = low(seed, "i64"), e(f"arith.shrui {seed}, {e.const(32, 'i64')} : i64")
    for step in range(10):
        if step:
            k0 = low(e(f"arith.addi {k0}, {e.const(_W0, 'i64')} : i64"), "i64")
            k1 = low(e(f"arith.addi {k1}, {e.const(_W1, 'i64')} : i64"), "i64")
        high0, low0 = _mulhilo(e, c[0], _M0, lanes)
        high1, low1 = _mulhilo(e, c[2], _M1, lanes)
        c = [
            e(f"arith.xori {e(f'arith.xori {high1}, {c[1]} : {i64}')}, {splat(k0)} : {i64}"),
            low1,
            e(f"arith.xori {e(f'arith.xori {high0}, {c[3]} : {i64}')}, {splat(k1)} : {i64}"),
            low0,
        ]
    return c


def emit(e: Emitter, kind: str, stream: int | str, args: list[str], dtype: str, lanes: int) -> str:
    """The random number of element `args[0]`. args: index, seed and offset."""
    i64 = shaped("i64", lanes)
    words = bits(e, stream, args[0], args[1], args[2], lanes)
    lane = e(f"arith.andi {args[0]}, {e.const(3, i64)} : {i64}")

    def is_lane(n: int) -> str:
        return e(f"arith.cmpi eq, {lane}, {e.const(n, i64)} : {i64}")

    low = select(e, is_lane(0), words[0], words[1], i64, lanes)
    high = select(e, is_lane(2), words[2], words[3], i64, lanes)
    first = e(f"arith.cmpi ult, {lane}, {e.const(2, i64)} : {i64}")
    if kind == "normal":
        return _normal(e, words, lane, first, dtype, lanes)
    word = select(e, first, low, high, i64, lanes)
    if kind == "bits":
        reg = register_type(dtype, lanes)
        return word if reg == i64 else e(f"arith.trunci {word} : {i64} to {reg}")
    return _finish(e, _unit(e, word, lanes), dtype, lanes)


def _unit(e: Emitter, word: str, lanes: int) -> str:
    """A number in [0, 1) from the upper 24 bits of a word, as f32."""
    i64, i32, f32 = shaped("i64", lanes), shaped("i32", lanes), shaped("f32", lanes)
    top = e(f"arith.trunci {e(f'arith.shrui {word}, {e.const(8, i64)} : {i64}')} : {i64} to {i32}")
    return e(
        f"arith.mulf {e(f'arith.sitofp {top} : {i32} to {f32}')}, {e.const(2.0**-24, f32)} : {f32}"
    )


def _finish(e: Emitter, x: str, dtype: str, lanes: int) -> str:
    if dtype == "f64":
        return e(f"arith.extf {x} : {shaped('f32', lanes)} to {shaped('f64', lanes)}")
    return round_half(e, x, dtype, lanes) if dtype in HALVES else x


def _normal(e: Emitter, words: list[str], lane: str, first: str, dtype: str, lanes: int) -> str:
    """Normal numbers by the Box-Muller transform: a pair of words gives a pair of numbers, cosine first."""
    i64, f32 = shaped("i64", lanes), shaped("f32", lanes)
    a = _unit(e, select(e, first, words[0], words[2], i64, lanes), lanes)
    b = _unit(e, select(e, first, words[1], words[3], i64, lanes), lanes)
    # 1 - a lies in (0, 1], so the logarithm is finite
    log = vmath.emit(e, "log", [e(f"arith.subf {e.const(1, f32)}, {a} : {f32}")], f32)
    radius = vmath.emit(e, "sqrt", [e(f"arith.mulf {log}, {e.const(-2, f32)} : {f32}")], f32)
    angle = e(f"arith.mulf {b}, {e.const(6.283185307179586, f32)} : {f32}")
    odd = e(
        f"arith.cmpi ne, {e(f'arith.andi {lane}, {e.const(1, i64)} : {i64}')}, {e.const(0, i64)} : {i64}"
    )
    sine, cosine = (vmath.emit(e, name, [angle], f32) for name in ("sin", "cos"))
    return _finish(
        e,
        e(f"arith.mulf {radius}, {select(e, odd, sine, cosine, f32, lanes)} : {f32}"),
        dtype,
        lanes,
    )

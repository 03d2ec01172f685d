"""Device functions that generated kernels call, as text. A kernel's source includes those that it needs."""

from __future__ import annotations

from collections.abc import Iterable

#: the start of every source
HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

_FUNCTIONS: dict[str, str] = {
    "gf_remainder": '''
def gf_remainder(a, b):
    """The remainder with b's sign."""
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
''',
    "gf_sign": '''
def gf_sign(x):
    """-1, 0 or 1; 0 for NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
''',
    "gf_int_div": '''
def gf_int_div(a, b):
    """Truncated; 0 where b is 0."""
    odd = (b == 0) | (b == -1)  # -1 overflows
    return tl.where(b == 0, 0, tl.where(b == -1, 0 - a, a // tl.where(odd, 1, b)))
''',
    "gf_uint_div": '''
def gf_uint_div(a, b):
    """0 where b is 0."""
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))
''',
    "gf_int_fmod": '''
def gf_int_fmod(a, b):
    """The remainder with a's sign; 0 where b is 0."""
    odd = (b == 0) | (b == -1)
    return tl.where(odd, 0, a % tl.where(odd, 1, b))
''',
    "gf_uint_fmod": '''
def gf_uint_fmod(a, b):
    """0 where b is 0."""
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))
''',
    "gf_int_remainder": '''
def gf_int_remainder(a, b):
    """The remainder with b's sign; 0 where b is 0."""
    r = gf_int_fmod(a, b)
    return tl.where((r != 0) & ((r ^ b) < 0), r + b, r)
''',
    "gf_uint_pow": '''
def gf_uint_pow(a, b, bits: tl.constexpr):
    """Square and multiply; wraps around."""
    result = (a ^ a) | 1
    for _ in tl.static_range(bits):
        result = tl.where((b & 1) != 0, result * a, result)
        a = a * a
        b = b >> 1
    return result
''',
    "gf_int_pow": '''
def gf_int_pow(a, b, bits: tl.constexpr):
    """As unsigned; a negative exponent gives 0 but for bases 1 and -1."""
    sign = tl.where((b & 1) == 0, 1, -1).to(a.dtype)
    special = tl.where(a == 1, 1, tl.where(a == -1, sign, 0)).to(a.dtype)
    return tl.where(b < 0, special, gf_uint_pow(a, b, bits))
''',
    "gf_shift_left": '''
def gf_shift_left(a, b, bits: tl.constexpr):
    """0 where b is out of range."""
    out = (b < 0) | (b >= bits)
    return tl.where(out, 0, a << tl.where(out, 0, b))
''',
    "gf_shift_right": '''
def gf_shift_right(a, b, bits: tl.constexpr):
    """As if all the bits were shifted one by one where b is out of range."""
    out = (b < 0) | (b >= bits)
    beyond = tl.where(a < 0, -1, 0).to(a.dtype)
    return tl.where(out, beyond, a >> tl.where(out, 0, b))
''',
    "gf_combine_max": '''
def gf_combine_max(a, b):
    return tl.maximum(a, b, tl.PropagateNan.ALL)
''',
    "gf_combine_min": '''
def gf_combine_min(a, b):
    return tl.minimum(a, b, tl.PropagateNan.ALL)
''',
    "gf_combine_int_max": '''
def gf_combine_int_max(a, b):
    return tl.maximum(a, b)
''',
    "gf_combine_int_min": '''
def gf_combine_int_min(a, b):
    return tl.minimum(a, b)
''',
    "gf_combine_prod": '''
def gf_combine_prod(a, b):
    return a * b
''',
    "gf_combine_or": '''
def gf_combine_or(a, b):
    return a | b
''',
    "gf_combine_and": '''
def gf_combine_and(a, b):
    return a & b
''',
    "gf_wide_sum": '''
def gf_wide_sum(x):
    """The sums of a tile's rows in float64: eight neighbours, which a thread or two hold, are added in float32."""
    length: tl.constexpr = x.shape[len(x.shape) - 1]
    few: tl.constexpr = min(length, 8)
    rows: tl.constexpr = x.numel // length
    if rows == 1:  # a number has no layout that other values would be converted to
        parts = tl.sum(tl.reshape(x, (length // few, few)), 1)
        total = tl.sum(parts.to(tl.float64), 0)
    else:
        total = tl.sum(x.to(tl.float64), 1, keep_dims=True)
    return total
''',
    "gf_columns": '''
def gf_columns(tile, part: tl.constexpr, PARTS: tl.constexpr):
    """Columns of a tile: piece number `part` of so many equal ones; they stay in their registers."""
    if PARTS > 1:
        halves = tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2))
        left, right = tl.split(tl.permute(halves, (0, 2, 1)))
        if part < PARTS // 2:
            tile = gf_columns(left, part, PARTS // 2)
        else:
            tile = gf_columns(right, part - PARTS // 2, PARTS // 2)
    return tile
''',
    "gf_softmax_runs": '''
def gf_softmax_runs(x, run: tl.constexpr):
    """exp(x - m), with the maxima m of runs of a tile's columns; the maxima; the sums of the exponentials."""
    runs = tl.reshape(x, (x.shape[0], x.shape[1] // run, run))
    m = tl.maximum(tl.max(runs, 2), -3.4028234663852886e38)
    e = tl.exp(runs - m[:, :, None])
    return tl.reshape(e, x.shape), m, tl.sum(e, 2)
''',
    "gf_erf": '''
def gf_erf(x):
    """The error function to 16 bits: 1 minus a polynomial of 1 / (1 + 0.4 |x|) times exp(-x²)."""
    a = tl.abs(x)
    t = libdevice.fast_dividef(1.0, a * 0.4 + 1.0)
    p = t * -0.200259795 + 0.709149576
    p = p * t - 0.370911587
    p = p * t + 0.468277111
    p = p * t + 0.161822385
    p = p * t + 0.231922282
    square = x * x
    far = libdevice.copysign(1.0 - p * t * libdevice.fast_expf(square * -1.0), x)
    return tl.where(a < 0.1, x * (square * -0.376126389 + 1.12837917), far)
''',
    "gf_tanh": '''
def gf_tanh(x):
    """The hyperbolic tangent to 16 bits, without a branch: 1 - 2 / (1 + exp(2 |x|)), and a polynomial near 0."""
    a = tl.abs(x)
    far = 1.0 - libdevice.fast_dividef(2.0, 1.0 + libdevice.fast_expf(a * 2.0))
    square = x * x
    near = x * (square * (square * 0.133333333 - 0.333333333) + 1.0)
    return tl.where(a < 0.1, near, libdevice.copysign(far, x))
''',
    "gf_philox": '''
def gf_philox(block, stream, seed, offset):
    """The four words of a block of random bits: Philox 4x32-10."""
    c0 = block.to(tl.uint32)
    c1 = (block.to(tl.uint64) >> 32).to(tl.uint32)
    c2 = stream.to(tl.uint32)
    c3 = offset.to(tl.uint32)
    k0 = seed.to(tl.uint32)
    k1 = (seed.to(tl.uint64) >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        high0 = tl.umulhi(0xD2511F53, c0) ^ c3 ^ k1
        high1 = tl.umulhi(0xCD9E8D57, c2) ^ c1 ^ k0
        c3 = tl.mul(c0, 0xD2511F53, sanitize_overflow=False)
        c1 = tl.mul(c2, 0xCD9E8D57, sanitize_overflow=False)
        c0 = high1
        c2 = high0
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3
''',
    "gf_uniform": '''
def gf_uniform(word):
    """The upper 24 bits as a number in [0, 1)."""
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
''',
    "gf_normal": '''
def gf_normal(even, odd, sine):
    """Box and Muller: one of the two normal numbers that two words give."""
    radius = tl.sqrt_rn(libdevice.log(1.0 - gf_uniform(even)) * -2.0)
    angle = gf_uniform(odd) * 6.283185307179586
    return radius * tl.where(sine, libdevice.sin(angle), libdevice.cos(angle))
''',
}  # fmt: skip

_NEEDS = {
    "gf_int_remainder": ("gf_int_fmod",),
    "gf_int_pow": ("gf_uint_pow",),
    "gf_normal": ("gf_uniform",),
}


def functions(names: Iterable[str]) -> str:
    """The text of these functions and of those that they call."""
    wanted = set(names)
    for name in list(wanted):
        wanted.update(_NEEDS.get(name, ()))
    return "".join(f"\n\n@triton.jit{_FUNCTIONS[n]}" for n in _FUNCTIONS if n in wanted)


def source(kernel: str, names: Iterable[str], comment: str = "") -> str:
    """A complete source: imports, device functions, and the kernel with a comment before it."""
    return f"{HEADER}{functions(names)}\n\n{comment}@triton.jit\n{kernel}"

"""Random numbers: stateless Philox draws, one stream number each (docs/random.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gflow.dialects.mlir import ir

from ..dtypes import Unsupported, is_float, mlir_dtype, opmath
from ..emitter import Emitter, Value
from ..registry import lowers
from .creation import _dtype


def draw(em: Emitter, kind: str, shape: Any, dtype: str) -> Value:
    """A new stream of random numbers; adds the function's rng argument on first use."""
    state = generator_state(em)
    return em("random", state, kind=kind, stream=next_stream(em), shape=tuple(shape), dtype=dtype)


def generator_state(em: Emitter) -> Value:
    """The function's rng argument."""
    if em.rng is None:
        argument = em.block.add_argument(em.mlir_type((2,), "i64"), ir.Location.unknown())
        em.rng = em.wrap(argument, (2,), "i64")
    return em.rng


def next_stream(em: Emitter) -> int:
    """The number of a stream that nothing has drawn from."""
    em.streams += 1
    return em.streams - 1


def uniform_bits(em: Emitter, shape: Any, dtype: str) -> Value:
    """Uniform in [0, 1), never 1 after rounding: 53 bits for f64, 24, 11 or 8 for the others."""
    if dtype == "f64":
        high, low = draw(em, "bits", shape, "i64"), draw(em, "bits", shape, "i64")
        word = em.binary("shift_left", high, 21) | em.binary("shift_right", low, 11)
        return word.to("f64") * 2.0**-53
    u = draw(em, "uniform", shape, "f32")
    bits = {"f16": 11, "bf16": 8}.get(dtype)
    if bits is None:
        return u
    return (em("floor", u * 2.0**bits) * 2.0**-bits).to(dtype)


def normals(em: Emitter, shape: Any, dtype: str) -> Value:
    """Standard normal numbers; f64 by Box and Muller from 53-bit draws."""
    if dtype != "f64":
        return draw(em, "normal", shape, dtype)
    radius = em("sqrt", em("log", 1.0 - uniform_bits(em, shape, dtype)) * -2.0)
    return radius * em("cos", uniform_bits(em, shape, dtype) * (2 * math.pi))


def _float(dtype: str) -> str:
    if not is_float(dtype):
        raise Unsupported("a continuous distribution of integers")
    return dtype


def _reject_generator(generator: Any) -> None:
    if generator is not None:
        raise Unsupported("an explicit generator")


# -- uniform and normal


def _drawn(
    draw: Callable[[Emitter, Any, str], Value], em: Emitter, like: Any, generator: Any, options: Any
) -> Value:
    _reject_generator(generator)
    model = like if isinstance(like, Value) else None
    return draw(em, model.shape if model else like, _float(_dtype(em, options, model)))


@lowers("aten.rand", "aten.rand_like")
def rand(em: Emitter, like: Any, generator: Any = None, **options: Any) -> Value:
    """Uniform in [0, 1). like: a shape, or a value with it.

    Raises:
        Unsupported: a generator is given, here and below.
    """
    return _drawn(uniform_bits, em, like, generator, options)


@lowers("aten.randn", "aten.randn_like")
def randn(em: Emitter, like: Any, generator: Any = None, **options: Any) -> Value:
    """Standard normal. like: a shape, or a value with it."""
    return _drawn(normals, em, like, generator, options)


@lowers("aten.uniform")
def uniform(
    em: Emitter, x: Value, low: float = 0.0, high: float = 1.0, *, generator: Any = None, **kw: Any
) -> Value:
    """Uniform in [low, high), with the shape and dtype of `x`."""
    _reject_generator(generator)
    low, high = kw.get("from", low), kw.get("to", high)
    u = uniform_bits(em, x.shape, opmath(_float(x.dtype)))
    return (u * (high - low) + low).to(x.dtype)


@lowers("aten.normal_functional")
def normal_functional(
    em: Emitter, x: Value, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Value:
    """Normal, with the shape and dtype of `x`."""
    _reject_generator(generator)
    z = normals(em, x.shape, opmath(_float(x.dtype)))
    return (z * std + mean).to(x.dtype)


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def normal(em: Emitter, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Value:
    """Normal; mean and std are numbers or tensors."""
    _reject_generator(generator)
    want = em.current_results[0]
    dtype = opmath(_float(mlir_dtype(want.dtype)))
    z = normals(em, want.shape, dtype)
    for value, name in ((std, "mul"), (mean, "add")):
        z = em.binary(name, z, value.to(dtype) if isinstance(value, Value) else value)
    return z


@lowers("aten.normal.float_float")
def normal_sized(
    em: Emitter, mean: float, std: float, size: Any, *, generator: Any = None, **options: Any
) -> Value:
    """Normal, of a shape."""
    return normal(em, mean, std, generator=generator)


@lowers("aten.log_normal")
def log_normal(
    em: Emitter, x: Value, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> Value:
    """e to the power of normals, with the shape and dtype of `x`."""
    _reject_generator(generator)
    z = normals(em, x.shape, opmath(_float(x.dtype)))
    return em("exp", z * std + mean).to(x.dtype)


@lowers("aten.exponential")
def exponential(em: Emitter, x: Value, rate: float = 1.0, *, generator: Any = None) -> Value:
    """−log(1 − u) / rate, u uniform, with the shape and dtype of `x`."""
    _reject_generator(generator)
    u = uniform_bits(em, x.shape, opmath(_float(x.dtype)))
    return (em("log1p", -u) / -rate).to(x.dtype)


@lowers("aten.cauchy")
def cauchy(
    em: Emitter, x: Value, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> Value:
    """median + sigma · tan(π · (u − 1/2)), u uniform, with the shape and dtype of `x`."""
    _reject_generator(generator)
    u = uniform_bits(em, x.shape, opmath(_float(x.dtype)))
    return (em("tan", (u - 0.5) * math.pi) * sigma + median).to(x.dtype)


@lowers("aten.geometric")
def geometric(em: Emitter, x: Value, p: float, *, generator: Any = None) -> Value:
    """⌈log(u) / log(1 − p)⌉, at least 1, with the shape and dtype of `x`.

    Raises:
        Unsupported: p is not in (0, 1).
    """
    _reject_generator(generator)
    if not 0 < p < 1:
        raise Unsupported("a geometric distribution without failures")
    compute = opmath(x.dtype) if is_float(x.dtype) else "f64"
    u = 1.0 - uniform_bits(em, x.shape, compute)
    return em.maximum(em("ceil", em("log", u) / math.log1p(-p)), 1.0).to(x.dtype)


# -- choices


def _bernoulli(em: Emitter, shape: Any, p: Any) -> Value:
    return draw(em, "uniform", shape, "f32").lt(p)


@lowers("aten.bernoulli.default")
def bernoulli(em: Emitter, p: Value, *, generator: Any = None) -> Value:
    """1 with probability `p`, elementwise."""
    _reject_generator(generator)
    return _bernoulli(em, p.shape, p.to("f32")).to(p.dtype)


@lowers("aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli_p(em: Emitter, x: Value, p: Any = 0.5, *, generator: Any = None) -> Value:
    """1 with probability `p`, with the shape and dtype of `x`."""
    _reject_generator(generator)
    return _bernoulli(em, x.shape, p.to("f32") if isinstance(p, Value) else p).to(x.dtype)


@lowers("aten.native_dropout")
def native_dropout(em: Emitter, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """x times 1 / (1 − p) where kept and times 0 elsewhere, and the mask of what is kept: NaN where an infinite
    element is dropped, and zeros with signs, as in eager."""
    if train is False or p == 0:
        return x, em.full(True, x.shape, "i1")
    if p == 1:
        return x * 0.0, em.full(False, x.shape, "i1")
    keep = _bernoulli(em, x.shape, 1.0 - p)
    v = x.compute()
    return (v * _kept(em, keep, 1.0 / (1.0 - p), v.dtype)).to(x.dtype), keep


def _kept(em: Emitter, keep: Value, scale: float, dtype: str) -> Value:
    return em.select(keep, em.full(scale, keep.shape, dtype), 0.0)


@lowers("aten.native_dropout_backward")
def native_dropout_backward(em: Emitter, dy: Value, mask: Value, scale: float) -> Value:
    """dy times scale where the mask holds, and times 0 elsewhere."""
    d = dy.compute()
    return (d * _kept(em, mask, scale, d.dtype)).to(dy.dtype)


# -- integers


def _integers(em: Emitter, low: Any, high: Any, shape: Any, dtype: str) -> Value:
    if isinstance(low, Value) or isinstance(high, Value):
        raise Unsupported("traced bounds")
    if not 0 < high - low < 2**62:
        raise Unsupported("a range this wide")
    bits = draw(em, "bits", shape, "i64")
    if high - low > 2**24:  # one word would favour the low numbers
        bits = em.binary("shift_left", bits, 30) | em.binary(
            "shift_right", draw(em, "bits", shape, "i64"), 2
        )
    return (em.binary("remainder", bits, high - low) + low).to(dtype)


@lowers("aten.randint.default", "aten.randint.generator")
def randint(em: Emitter, high: Any, size: Any, *, generator: Any = None, **options: Any) -> Value:
    """Integers in [0, high), of a shape."""
    _reject_generator(generator)
    return _integers(em, 0, high, size, _dtype(em, options))


@lowers("aten.randint.low", "aten.randint.low_generator")
def randint_low(
    em: Emitter, low: Any, high: Any, size: Any, *, generator: Any = None, **options: Any
) -> Value:
    """Integers in [low, high), of a shape."""
    _reject_generator(generator)
    return _integers(em, low, high, size, _dtype(em, options))


@lowers("aten.randint_like.default")
def randint_like(em: Emitter, x: Value, high: Any, **options: Any) -> Value:
    """Integers in [0, high), with the shape of `x`."""
    return _integers(em, 0, high, x.shape, _dtype(em, options, x))


@lowers("aten.randint_like.low_dtype")
def randint_like_low(em: Emitter, x: Value, low: Any, high: Any, **options: Any) -> Value:
    """Integers in [low, high), with the shape of `x`."""
    return _integers(em, low, high, x.shape, _dtype(em, options, x))


@lowers("aten.random.from", "aten.random.to")
def random_range(em: Emitter, x: Value, *bounds: Any, generator: Any = None) -> Value:
    """Integers in a range, with the shape and dtype of `x`.

    Raises:
        Unsupported: the range has no end.
    """
    _reject_generator(generator)
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    if high is None:
        raise Unsupported("a range without an end")
    return _integers(em, low, high, x.shape, x.dtype)

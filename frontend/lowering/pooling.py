"""Average pooling where the windows tile the input: a mean. Maximum pooling whose positions nothing reads (no
gradient does): the maximum of one slice for each place in a window. All other pooling is `gflow.aten`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from .dtypes import Unsupported, is_float
from .emitter import Emitter, Value
from .registry import lowers


def _blocks(x: Value, kernel: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """x's shape with each spatial dimension split into (blocks, kernel); the kernel dimensions."""
    spatial = len(kernel)
    shape: list[int] = list(x.shape[: x.rank - spatial])
    dims = []
    for size, k in zip(x.shape[x.rank - spatial :], kernel):
        if k < 1 or size % k or not size:
            raise Unsupported("windows that do not tile the input")
        shape += [size // k, k]
        dims.append(len(shape) - 1)
    return tuple(shape), dims


def _pool(em: Emitter, x: Value, kernel: Sequence[int]) -> Value:
    shape, dims = _blocks(x, kernel)
    return em.mean(x.compute().reshape(shape), dims).to(x.dtype)


def _unpool(em: Emitter, dy: Value, x: Value, kernel: Sequence[int]) -> Value:
    shape, dims = _blocks(x, kernel)
    count = 1
    for k in kernel:
        count *= k
    d = (dy.compute() / count).to(dy.dtype)
    kept = [i for i in range(len(shape)) if i not in dims]
    return em.broadcast(d, shape, kept).reshape(x.shape)


def _each(given: Any, spatial: int) -> tuple[int, ...]:
    values = (given,) if isinstance(given, int) else tuple(given)
    return values * spatial if len(values) == 1 else values


def _kernel(
    x: Value, spatial: int, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> tuple[int, ...]:  # fmt: skip
    kernel = _each(kernel, spatial)
    stride = _each(stride, spatial) if stride else kernel
    if stride != kernel or any(_each(padding, spatial)) or divisor is not None or x.numel == 0:
        raise Unsupported("overlapping windows")
    return kernel


#: the most places in a window of a maximum
_MOST_PLACES = 27


def _max_pool(
    em: Emitter, x: Value, spatial: int, kernel: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    out, indices = em.current_results
    kernel, padding, dilation = (_each(v, spatial) for v in (kernel, padding, dilation))
    stride = _each(stride, spatial) if stride else kernel
    if em.needs(1) or ceil_mode or 0 in out.shape or not is_float(x.dtype):
        raise Unsupported("positions of maxima")
    if math.prod(kernel) > _MOST_PLACES:
        raise Unsupported("large windows")
    first = x.rank - spatial
    sizes = out.shape[first:]
    spans = [
        (o - 1) * s + 1 for o, s in zip(sizes, stride)
    ]  # what one place of a window walks over
    high = [
        max(0, span + d * (k - 1) - n - p)
        for span, d, k, n, p in zip(spans, dilation, kernel, x.shape[first:], padding)
    ]
    whole = [0] * first
    padded = em.pad(x, [*whole, *padding], [*whole, *high], -math.inf)
    found = None
    for place in itertools.product(*map(range, kernel)):
        part = padded
        for d, (at, step, span, by) in enumerate(zip(place, dilation, spans, stride), first):
            part = em.slice(part, d, at * step, at * step + span, by)
        found = part if found is None else em.maximum(found, part)
    assert found is not None
    return found, em.full(0, indices.shape, "i64")


def _adaptive_kernel(x: Value, out: Sequence[int]) -> tuple[int, ...]:
    if any(o == 0 for o in out):
        raise Unsupported("an empty output")
    sizes = x.shape[x.rank - len(out) :]
    if any(s % o for s, o in zip(sizes, out)):
        raise Unsupported("windows of unequal size")
    return tuple(s // o for s, o in zip(sizes, out))


def _register(n: int) -> None:
    @lowers(f"aten.avg_pool{n}d")
    def avg_pool(em: Emitter, x: Value, *window: Any, **options: Any) -> Value:
        return _pool(em, x, _kernel(x, n, *window, **options))

    @lowers(f"aten.avg_pool{n}d_backward")
    def avg_pool_backward(em: Emitter, dy: Value, x: Value, *window: Any, **options: Any) -> Value:
        return _unpool(em, dy, x, _kernel(x, n, *window, **options))

    @lowers(f"aten.max_pool{n}d_with_indices")
    def max_pool(em: Emitter, x: Value, *window: Any, **options: Any) -> tuple[Value, Value]:
        return _max_pool(em, x, n, *window, **options)

    @lowers(f"aten._adaptive_avg_pool{n}d", f"aten.adaptive_avg_pool{n}d")
    def adaptive(em: Emitter, x: Value, out: Any) -> Value:
        return _pool(em, x, _adaptive_kernel(x, out))

    @lowers(f"aten._adaptive_avg_pool{n}d_backward")
    def adaptive_backward(em: Emitter, dy: Value, x: Value) -> Value:
        return _unpool(em, dy, x, _adaptive_kernel(x, dy.shape[dy.rank - n :]))


for _n in (1, 2, 3):
    _register(_n)

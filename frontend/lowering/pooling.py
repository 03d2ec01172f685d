"""Average pooling where the windows tile the input: a mean. All other pooling is `gflow.aten`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dtypes import Unsupported
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


def _kernel(
    x: Value, spatial: int, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> tuple[int, ...]:  # fmt: skip
    def each(v: Any) -> tuple[int, ...]:
        v = (v,) if isinstance(v, int) else tuple(v)
        return v * spatial if len(v) == 1 else v

    kernel = each(kernel)
    stride = each(stride) if stride else kernel
    if stride != kernel or any(each(padding)) or divisor is not None or x.numel == 0:
        raise Unsupported("overlapping windows")
    return kernel


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

    @lowers(f"aten._adaptive_avg_pool{n}d", f"aten.adaptive_avg_pool{n}d")
    def adaptive(em: Emitter, x: Value, out: Any) -> Value:
        return _pool(em, x, _adaptive_kernel(x, out))

    @lowers(f"aten._adaptive_avg_pool{n}d_backward")
    def adaptive_backward(em: Emitter, dy: Value, x: Value) -> Value:
        return _unpool(em, dy, x, _adaptive_kernel(x, dy.shape[dy.rank - n :]))


for _n in (1, 2, 3):
    _register(_n)

"""Pooling: `gflow.max_pool`, `gflow.avg_pool` and their gradients. Average pooling whose windows tile the input is a
mean. On the CPU, maximum pooling whose positions nothing reads (no gradient does) is the maximum of one slice for each
place in a window, which fuses with what is around."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.extents import divisor, varies
from gflow.dialects.ops import OPS

from ...dtypes import is_float
from ...emitter import Emitter, Value
from ...registry import lowers


def _blocks(x: Value, kernel: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """x's shape with each spatial dimension split into (blocks, kernel); the kernel dimensions."""
    spatial = len(kernel)
    shape: list[int] = list(x.shape[: x.rank - spatial])
    dims = []
    for size, k in zip(x.shape[x.rank - spatial :], kernel):
        shape += [size // k, k]
        dims.append(len(shape) - 1)
    return tuple(shape), dims


def _pool(x: Value, kernel: Sequence[int]) -> Value:
    shape, dims = _blocks(x, kernel)
    return x.em.mean(x.compute().reshape(shape), dims).to(x.dtype)


def _unpool(dy: Value, x: Value, kernel: Sequence[int]) -> Value:
    shape, dims = _blocks(x, kernel)
    d = (dy.compute() / math.prod(kernel)).to(dy.dtype)
    kept = [i for i in range(len(shape)) if i not in dims]
    return x.em.broadcast(d, shape, kept).reshape(x.shape)


def _each(given: Any, spatial: int) -> tuple[int, ...]:
    values = (given,) if isinstance(given, int) else tuple(given)
    return values * spatial if len(values) == 1 else values


def _windows(
    spatial: int, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> dict[str, Any]:  # fmt: skip
    """The attributes of a pooling op: window, stride, padding, dilation."""
    kernel, padding, dilation = (_each(v, spatial) for v in (kernel, padding, dilation))
    stride = _each(stride, spatial) if not isinstance(stride, tuple | list) or stride else kernel
    found: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
    if set(dilation) != {1}:
        found["dilation"] = dilation
    if ceil_mode:
        found["ceil_mode"] = True
    return found


def _mean_windows(
    spatial: int, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    found = _windows(spatial, kernel, stride, padding, 1, ceil_mode)
    if count_include_pad and any(found["padding"]):
        found["count_padding"] = True
    return found | ({} if divisor_override is None else {"divisor": divisor_override})


def _tiling(x: Value, windows: dict[str, Any], spatial: int) -> tuple[int, ...] | None:
    """The window's size, if windows tile the input and an average pooling is their mean; otherwise None."""
    sizes = x.shape[x.rank - spatial :]
    if x.numel == 0 or "divisor" in windows:
        return None
    if "size" in windows:
        if any(o == 0 or _rest(s, o) for s, o in zip(sizes, windows["size"])):
            return None
        return tuple(s // o for s, o in zip(sizes, windows["size"]))
    kernel: tuple[int, ...] = windows["kernel"]
    if windows["stride"] != kernel or any(windows["padding"]):
        return None
    return None if any(_rest(s, k) for s, k in zip(sizes, kernel)) else kernel


def _rest(size: int, by: int) -> int:
    """The remainder of a size; 0 only if there is none at every size."""
    return size % by if varies(by) else divisor(size) % by


def _emit(
    em: Emitter, name: str, operands: Sequence[Value], spatial: int, attrs: dict[str, Any]
) -> list[Value]:
    """Emit the op with a batch dimension, which PyTorch's call may lack."""
    single = operands[0].rank == spatial + 1
    if single:
        operands = [v.reshape((1, *v.shape)) for v in operands]
    if single and "shape" in attrs:
        attrs = {**attrs, "shape": (1, *attrs["shape"])}
    infer = OPS[name].infer
    assert infer is not None
    attrs = {**attrs, "layout": "NC*"}
    types = infer([v.type for v in operands], attrs)
    results = em.create(name, operands, attrs, [(ty.shape, ty.dtype) for ty in types])
    return [v.reshape(v.shape[1:]) for v in results] if single else results


#: the most places in a window of a maximum of slices
_MOST_PLACES = 27


def _of_slices(em: Emitter, x: Value, spatial: int, windows: dict[str, Any]) -> Value | None:
    """The maximum of one slice for each place in a window; None where it is not faster."""
    want = em.current_results[0]
    kernel, stride, padding = (windows.get(n, ()) for n in ("kernel", "stride", "padding"))
    if want.device.type != "cpu" or em.for_onnx or "size" in windows or windows.get("ceil_mode"):
        return None
    if 0 in want.shape or not is_float(x.dtype) or math.prod(kernel) > _MOST_PLACES:
        return None
    dilation = windows.get("dilation", (1,) * spatial)
    first = x.rank - spatial
    # what one place of a window walks over
    spans = [(o - 1) * s + 1 for o, s in zip(want.shape[first:], stride)]
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
    return found


def _max(em: Emitter, x: Value, spatial: int, windows: dict[str, Any]) -> tuple[Value, Value]:
    if em.needs(1):
        y, positions = _emit(em, "max_pool", [x], spatial, {**windows, "positions": "plane"})
        return y, positions
    found = _of_slices(em, x, spatial, windows)
    if found is None:
        (found,) = _emit(em, "max_pool", [x], spatial, {**windows, "positions": "none"})
    return found, em.full(0, found.shape, "i64")


def _mean(em: Emitter, x: Value, spatial: int, windows: dict[str, Any]) -> Value:
    kernel = _tiling(x, windows, spatial)
    return _pool(x, kernel) if kernel else _emit(em, "avg_pool", [x], spatial, windows)[0]


def _mean_grad(em: Emitter, dy: Value, x: Value, spatial: int, windows: dict[str, Any]) -> Value:
    kernel = _tiling(x, windows, spatial)
    if kernel:
        return _unpool(dy, x, kernel)
    return _emit(em, "avg_pool_grad", [dy], spatial, {**windows, "shape": x.shape})[0]


def _register(n: int) -> None:
    @lowers(f"aten.avg_pool{n}d")
    def avg_pool(em: Emitter, x: Value, *window: Any, **options: Any) -> Value:
        return _mean(em, x, n, _mean_windows(n, *window, **options))

    @lowers(f"aten.avg_pool{n}d_backward")
    def avg_pool_backward(em: Emitter, dy: Value, x: Value, *window: Any, **options: Any) -> Value:
        return _mean_grad(em, dy, x, n, _mean_windows(n, *window, **options))

    @lowers(f"aten._adaptive_avg_pool{n}d", f"aten.adaptive_avg_pool{n}d")
    def adaptive_avg_pool(em: Emitter, x: Value, out: Any) -> Value:
        return _mean(em, x, n, {"size": _each(out, n)})

    @lowers(f"aten._adaptive_avg_pool{n}d_backward")
    def adaptive_avg_pool_backward(em: Emitter, dy: Value, x: Value) -> Value:
        return _mean_grad(em, dy, x, n, {"size": tuple(dy.shape[dy.rank - n :])})

    @lowers(f"aten.max_pool{n}d_with_indices")
    def max_pool(em: Emitter, x: Value, *window: Any, **options: Any) -> tuple[Value, Value]:
        return _max(em, x, n, _windows(n, *window, **options))

    @lowers(f"aten.max_pool{n}d_with_indices_backward")
    def max_pool_backward(
        em: Emitter, dy: Value, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, indices: Value,
    ) -> Value:  # fmt: skip
        windows = _windows(n, kernel, stride, padding, dilation, ceil_mode)
        attrs = {**windows, "shape": x.shape}
        return _emit(em, "max_pool_grad", [dy, indices], n, attrs)[0]

    @lowers(f"aten.adaptive_max_pool{n}d")
    def adaptive_max_pool(em: Emitter, x: Value, out: Any) -> tuple[Value, Value]:
        return _max(em, x, n, {"size": _each(out, n)})

    @lowers(f"aten.adaptive_max_pool{n}d_backward")
    def adaptive_max_pool_backward(em: Emitter, dy: Value, x: Value, indices: Value) -> Value:
        attrs = {"size": tuple(dy.shape[dy.rank - n :]), "shape": x.shape}
        return _emit(em, "max_pool_grad", [dy, indices], n, attrs)[0]


for _n in (1, 2, 3):
    _register(_n)

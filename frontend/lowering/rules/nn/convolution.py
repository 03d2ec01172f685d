"""Convolutions of any number of spatial dimensions, transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dtypes import Unsupported, is_float
from ...emitter import Emitter, Value
from ...registry import lowers


def _attrs(
    x: Value, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Any]:
    spatial = x.rank - 2
    if x.numel == 0 or not is_float(x.dtype):
        raise Unsupported("a convolution of nothing, or of integers")

    def each(v: Sequence[int]) -> tuple[int, ...]:
        return tuple(v) * spatial if len(v) == 1 else tuple(v)

    return {"stride": each(stride), "padding": each(padding), "dilation": each(dilation),
            "groups": groups, "layout": "NC*"}  # fmt: skip


@lowers("aten.convolution")
def convolution(
    em: Emitter, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Value:  # fmt: skip
    """aten.convolution; a transposed one is the gradient for the input."""
    attrs = _attrs(x, stride, padding, dilation, groups)
    if transposed:
        shape = tuple(em.current_results[0].shape)
        if 0 in shape:  # padding may take away all that a transposed one gives
            return em.full(0.0, shape, x.dtype)
        y = em("convolution_input_grad", x, weight, **attrs, shape=shape)
    else:
        y = em("convolution", x, weight, **attrs)
    if bias is not None:
        spread = em.broadcast(bias.compute(), y.shape, (1,))
        y = (y.compute() + spread).to(y.dtype)
    return y


@lowers("aten.convolution_backward")
def convolution_backward(
    em: Emitter, dy: Value, x: Value, weight: Value, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> tuple[Value | None, Value | None, Value | None]:  # fmt: skip
    """Gradients of input, weight and bias, as far as output_mask wants them."""
    attrs = _attrs(x, stride, padding, dilation, groups)
    dx = dw = db = None
    if dy.numel == 0:
        shapes = (x.shape, weight.shape, (dy.shape[1],))
        zeros = [em.full(0.0, s, x.dtype) if m else None for s, m in zip(shapes, output_mask)]
        return zeros[0], zeros[1], zeros[2]
    if output_mask[0]:
        if transposed:
            dx = em("convolution", dy, weight, **attrs)
        else:
            dx = em("convolution_input_grad", dy, weight, **attrs, shape=x.shape)
    if output_mask[1]:
        first, second = (dy, x) if transposed else (x, dy)
        dw = em("convolution_weight_grad", first, second, **attrs, shape=weight.shape)
    if output_mask[2]:
        dims = [d for d in range(dy.rank) if d != 1]
        db = dy.compute().sum(dims).to(dy.dtype)
    return dx, dw, db

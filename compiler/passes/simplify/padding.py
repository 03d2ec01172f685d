"""Zero padding around the input of a convolution, which becomes padding of the convolution.

In the one-line descriptions x, w, dy are values.
"""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.ops.compute import conv_dims

from .rewriter import Node, Rewriter
from .rules import Rules

RULES = Rules()


@RULES.add("convolution", on=("pad",))
def convolution_of_pad(n: Node, b: Rewriter) -> ir.Value | None:
    """convolution(pad(x, 0), w) → convolution(x, w) with more padding, where both sides get as much"""
    return _padded(n, b)


@RULES.add("convolution_weight_grad", on=("pad",))
def convolution_weight_grad_of_pad(n: Node, b: Rewriter) -> ir.Value | None:
    """convolution_weight_grad(pad(x, 0), dy) → the same of x with more padding"""
    return _padded(n, b)


def _padded(n: Node, b: Rewriter) -> ir.Value | None:
    inner = b.node(n.operands[0], "pad")
    if inner is None or b.splat(inner.operands[1]) != 0:
        return None
    more = _both_sides(n, inner.attrs["low"], inner.attrs["high"])
    if more is None:
        return None
    return b.build(n.name, [inner.operands[0], n.operands[1]], {**n.attrs, "padding": more})


@RULES.add("slice", on=("convolution_input_grad",))
def slice_of_convolution_input_grad(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(convolution_input_grad(dy, w)) → the same with more padding, where as much is left out on both sides"""
    inner = b.node(n.operands[0], "convolution_input_grad")
    if inner is None or any(s != 1 for s in n.attrs["strides"]):
        return None
    uses = iter(inner.result.uses)
    if next(uses, None) is None or next(uses, None) is not None:
        return None  # other users need all of it
    sizes = inner.attrs["shape"]
    high = [size - limit for size, limit in zip(sizes, n.attrs["limits"])]
    more = _both_sides(inner, n.attrs["starts"], high)
    if more is None:
        return None
    attrs = {**inner.attrs, "padding": more, "shape": n.type.shape}
    return b.build("convolution_input_grad", inner.operands, attrs)


def _both_sides(
    conv: Node, low: tuple[int, ...] | list[int], high: tuple[int, ...] | list[int]
) -> tuple[int, ...] | None:
    """The padding of `conv` plus this padding; None if both sides differ, or if other dimensions are padded."""
    batch, channel, spatial = conv_dims(conv.attrs["layout"], len(low))
    if any((low[d], high[d]) != (0, 0) for d in (batch, channel)):
        return None
    if any(low[d] != high[d] or low[d] < 0 for d in spatial):
        return None
    return tuple(p + low[d] for p, d in zip(conv.attrs["padding"], spatial))

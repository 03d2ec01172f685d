"""Rows of an attention without a visible key, with eager's results: NaN, or equal weights."""

from __future__ import annotations

import math

from gflow.dialects import builder
from gflow.dialects.mlir import ir


class Rows:
    """Rows without a visible key.

    Args:
        bias: the mask, of rank 4: values that are added to scores, or i1 for the visible keys.
        sums: the logarithms of sums, [batch, head, position].
        weights: the weights of such a row, "nan" or "equal".
    """

    def __init__(self, bias: ir.Value, sums: ir.Value, weights: str) -> None:
        self.ty, self.weights = builder.type_of(sums), weights
        if builder.type_of(bias).dtype == "i1":
            some = builder.build("reduce", [bias], {"dims": (3,), "kind": "any"})
            empty = builder.build("not", [some])
        else:
            most = builder.build("reduce", [bias], {"dims": (3,), "kind": "max"})
            least = builder.splat(-math.inf, builder.type_of(most))
            empty = builder.build("compare", [most, least], {"predicate": "eq"})
        self.empty = builder.broadcast(empty, self.ty.shape, (0, 1, 2))
        self.by_row = builder.transpose(self.empty, (0, 2, 1))

    def finite(self, sums: ir.Value) -> ir.Value:
        """The logarithms, with 0 for such rows, so that their weights in the backward are 0."""
        return builder.build("select", [self.empty, builder.splat(0.0, self.ty), sums])

    def result(self, y: ir.Value, v: ir.Value) -> ir.Value:
        """The result, with eager's values in such rows."""
        return builder.build("select", [self._spread(y), self._instead(y, v), y])

    def _instead(self, y: ir.Value, v: ir.Value) -> ir.Value:
        ty = builder.type_of(y)
        if self.weights == "nan":
            return builder.splat(math.nan, ty)
        total = builder.build("reduce", [v], {"dims": (1,), "kind": "sum"})
        mean = times(total, 1 / builder.type_of(v).shape[1])
        return builder.broadcast(mean, ty.shape, (0, 2, 3))

    def others(self, dy: ir.Value) -> ir.Value:
        """dy, with 0 in such rows: it may be NaN if the result is NaN."""
        zero = builder.splat(0.0, builder.type_of(dy))
        return builder.build("select", [self._spread(dy), zero, dy])

    def v_gradient(self, dv: ir.Value, dy: ir.Value) -> ir.Value:
        """The gradient of v with the contribution of such rows: their weights are not 0. They contribute nothing to the
        gradients of q and k, since the program sets their scores."""
        ty = builder.type_of(dv)
        if self.weights == "equal":
            zero = builder.splat(0.0, builder.type_of(dy))
            theirs = builder.build("select", [self._spread(dy), dy, zero])
            total = builder.build("reduce", [theirs], {"dims": (1,), "kind": "sum"})
            share = builder.broadcast(times(total, 1 / ty.shape[1]), ty.shape, (0, 2, 3))
            return builder.build("add", [dv, share])
        counts = builder.convert(self.by_row, ty.dtype)
        some = builder.build("reduce", [counts], {"dims": (1,), "kind": "max"})
        zero = builder.splat(0.0, builder.type_of(some))
        hit = builder.build("compare", [some, zero], {"predicate": "gt"})
        spread = builder.broadcast(hit, ty.shape, (0, 2))
        return builder.build("select", [spread, builder.splat(math.nan, ty), dv])

    def _spread(self, like: ir.Value) -> ir.Value:
        return builder.broadcast(self.by_row, builder.type_of(like).shape, (0, 1, 2))


def times(x: ir.Value, by: float) -> ir.Value:
    """The product of a value and a number."""
    return builder.build("mul", [x, builder.splat(by, builder.type_of(x))])

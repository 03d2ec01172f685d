"""Values of the dialect with Python's operators, so that decompositions read as formulas.

All functions build ops at the current insertion point and location.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.types import TensorType


class Term:
    """An SSA value with operators. A Python number as the other operand becomes a constant of the same type."""

    __slots__ = ("value",)

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return builder.type_of(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The dialect's name of its element type."""
        return self.type.dtype

    def like(self, other: Term | float) -> Term:
        """`other`, if it is a term; a number as a constant of this type."""
        if isinstance(other, Term):
            return other
        return Term(builder.splat(other, self.type))

    def __add__(self, other: Term | float) -> Term:
        return make("add", self, self.like(other))

    def __sub__(self, other: Term | float) -> Term:
        return make("sub", self, self.like(other))

    def __rsub__(self, other: float) -> Term:
        return make("sub", self.like(other), self)

    def __mul__(self, other: Term | float) -> Term:
        return make("mul", self, self.like(other))

    def __truediv__(self, other: Term | float) -> Term:
        return make("div", self, self.like(other))

    def __rtruediv__(self, other: float) -> Term:
        return make("div", self.like(other), self)

    def __and__(self, other: Term | float) -> Term:
        return make("and", self, self.like(other))

    def __or__(self, other: Term | float) -> Term:
        return make("or", self, self.like(other))

    def __xor__(self, other: Term | float) -> Term:
        return make("xor", self, self.like(other))

    def __rshift__(self, bits: int) -> Term:
        return make("shift_right", self, self.like(bits))

    def __neg__(self) -> Term:
        return make("neg", self)

    def __abs__(self) -> Term:
        return make("abs", self)

    def is_(self, predicate: str, other: Term | float) -> Term:
        """The comparison with `other`. predicate: `eq`, `ne`, `lt`, `le`, `gt` or `ge`."""
        return make("compare", self, self.like(other), predicate=predicate)

    def where(self, a: Term | float, b: Term | float) -> Term:
        """`a` where this condition holds, otherwise `b`; at least one of them is a term."""
        kind = a if isinstance(a, Term) else b
        assert isinstance(kind, Term)
        return make("select", self, kind.like(a), kind.like(b))

    def to(self, dtype: str) -> Term:
        """Converted to a dtype."""
        return Term(builder.convert(self.value, dtype))

    def reshape(self, *shape: int) -> Term:
        """The term with another shape of the same number of elements."""
        return Term(builder.reshape(self.value, shape))

    def permute(self, *dims: int) -> Term:
        """The term with its dimensions in another order."""
        return Term(builder.transpose(self.value, dims))

    def spread(self, shape: Sequence[int], dims: Sequence[int] | None = None) -> Term:
        """Broadcast: dimension i becomes dimension dims[i] of the result. Default: the last dimensions."""
        return Term(builder.broadcast(self.value, shape, dims))

    def reduce(self, kind: str, *dims: int) -> Term:
        """The reduction over `dims`, which are dropped. kind: sum, prod, max, min, any or all."""
        return make("reduce", self, kind=kind, dims=tuple(sorted(dims)))

    def slice(self, dim: int, start: int, limit: int, stride: int = 1) -> Term:
        """Positions start:limit:stride of one dimension."""
        if (start, limit, stride) == (0, self.shape[dim], 1):
            return self
        starts, limits, strides = [0] * len(self.shape), list(self.shape), [1] * len(self.shape)
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return make("slice", self, starts=starts, limits=limits, strides=strides)


def make(name: str, *terms: Term, **attrs: Any) -> Term:
    """The result of an op `gflow.<name>` with one result."""
    return Term(builder.build(name, [t.value for t in terms], attrs))


def splat(value: float, shape: Sequence[int], dtype: str) -> Term:
    """A splat constant."""
    return Term(builder.splat(value, TensorType(tuple(shape), dtype)))


def iota(shape: Sequence[int], dim: int, dtype: str = "i64") -> Term:
    """The index along `dim`, as a tensor of this shape."""
    return make("iota", shape=tuple(shape), dim=dim, dtype=dtype)


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """A polynomial by Horner's rule; the coefficient of the highest power is first."""
    total = x.like(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total

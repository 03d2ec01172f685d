"""Emits gflow ops on values with operators: constants, elementwise ops, shapes, reductions.

All functions follow the dialect's rules: operands are broadcast, and Python numbers become splat constants of the full
shape. Element types are never mixed silently.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from gflow.dialects import extents
from gflow.dialects.constants import dense_attribute
from gflow.dialects.extents import horner, is_ordered, varies
from gflow.dialects.mlir import ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops import OPS
from gflow.dialects.types import FLOATS, HALVES, TensorType
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import SourceLoc, TraceOp

from .dtypes import Unsupported, has_kernels, opmath
from .op_writer import OpWriter

Number = bool | int | float


class Value:
    """A tensor in the IR. Operators broadcast; a Python number gets the tensor's element type.

    Args:
        number: whether it is a traced Python number (a learning rate), which takes part in type promotion as one.
        const: the number that fills the tensor, if it is a known splat.
    """

    __slots__ = ("const", "dtype", "em", "ir", "number", "shape")

    def __init__(
        self,
        em: Emitter,
        value: ir.Value,
        shape: tuple[int, ...],
        dtype: str,
        number: bool = False,
        const: Number | None = None,
    ) -> None:
        self.em = em
        self.ir = value
        self.shape = shape
        self.dtype = dtype
        self.number = number
        self.const = const

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return TensorType(self.shape, self.dtype)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return TensorType(self.shape, self.dtype).numel

    def __repr__(self) -> str:
        return f"Value({self.type})"

    def __add__(self, other: Any) -> Value:
        return self.em.binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.em.binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.em.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.em.binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.em.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.em.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.em.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.em.binary("div", other, self)

    def __neg__(self) -> Value:
        return self.em("neg", self)

    def __and__(self, other: Value) -> Value:
        return self.em.binary("and", self, other)

    def __or__(self, other: Value) -> Value:
        return self.em.binary("or", self, other)

    def __invert__(self) -> Value:
        return self.em("not", self)

    def eq(self, other: Any) -> Value:
        """Booleans: equal. other: a value or number, broadcast as in PyTorch."""
        return self.em.compare("eq", self, other)

    def ne(self, other: Any) -> Value:
        """Booleans: not equal."""
        return self.em.compare("ne", self, other)

    def lt(self, other: Any) -> Value:
        """Booleans: less."""
        return self.em.compare("lt", self, other)

    def le(self, other: Any) -> Value:
        """Booleans: less or equal."""
        return self.em.compare("le", self, other)

    def gt(self, other: Any) -> Value:
        """Booleans: greater."""
        return self.em.compare("gt", self, other)

    def ge(self, other: Any) -> Value:
        """Booleans: greater or equal."""
        return self.em.compare("ge", self, other)

    def to(self, dtype: str) -> Value:
        """Converted to a dtype of the dialect."""
        return self.em.convert(self, dtype)

    def compute(self) -> Value:
        """The value in the dtype in which arithmetic on it is computed (float32 for half precision)."""
        return self.em.convert(self, opmath(self.dtype))

    def reshape(self, shape: Sequence[int]) -> Value:
        """With another shape of as many elements."""
        return self.em.reshape(self, shape)

    def sum(self, dims: Sequence[int], keepdim: bool = False) -> Value:
        """The sum over dimensions, in the value's own dtype."""
        return self.em.reduce(self, "sum", dims, keepdim)

    def exact_sum(self, dims: Sequence[int], keepdim: bool = False) -> Value:
        """The sum as float64, without rounding the sum of float32 values to float32, if the program's engine supports
        float64."""
        wide = not self.em.for_onnx and self.dtype != "f64"
        return self.em.reduce(self, "sum", dims, keepdim, "f64" if wide else None)


class Emitter(OpWriter):
    """Appends ops to a block. There is one for each lowered trace; it must be used inside of its MLIR context."""

    def __init__(
        self,
        block: ir.Block,
        wide_statistics: bool = True,
        halves: bool = False,
        for_onnx: bool = False,
    ) -> None:
        super().__init__(block)
        self.wide_statistics, self.halves, self.for_onnx = wide_statistics, halves, for_onnx
        self.trace: Trace | None = None
        self.current: TraceOp | None = None  # the call that is being lowered
        self.current_results: Sequence[Any] = ()  # the results of the call, as TraceValues
        self.needed: set[int] = set()  # ids of the trace's values that are read
        self.drawn: Value | None = None  # what PyTorch has drawn last (`gflow.aten` with `unique`)
        self.rng: Value | None = None
        self.order: Value | None = None  # the token of the latest collective
        self.collectives = 0
        self.mesh: dict[str, int] = {}  # the number of ranks along each axis that collectives use
        self.sizes: dict[str, Value] = {}  # by name
        self.streams = 0
        self.uniques = 0
        self.checked: dict[ir.Value, set[Any]] = {}  # known ranges of values (`checks.py`)
        self._constants: dict[Any, Value] = {}
        self._repeated: dict[Any, Value] = {}  # conversions and broadcasts at the current location

    def at(self, loc: SourceLoc) -> None:
        """Ops emitted from now on come from `loc`."""
        before = self._loc
        super().at(loc)
        if self._loc is not before:
            self._repeated.clear()

    def mark(self, op: TraceOp) -> None:
        """Ops emitted from now on belong to the marked module calls and the phase of `op`."""
        super().mark(op)
        self._repeated.clear()

    @property
    def proven(self) -> bool:
        """Whether another program has checked the values of the current call."""
        return self.trace is not None and self.current in self.trace.proven

    def needs(self, number: int) -> bool:
        """Whether this result of the current call is read."""
        own = self.current is not None and self.current_results is self.current.results
        return not own or self.current_results[number].id in self.needed

    def wrap(self, value: ir.Value, shape: tuple[int, ...], dtype: str) -> Value:
        """An IR value with its shape and dtype."""
        return Value(self, value, shape, dtype)

    # -- ops

    def create(
        self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: Sequence[Any]
    ) -> list[Value]:
        """Append `gflow.<name>` with given result types."""
        given = [(v.ir, v.shape, v.dtype) for v in operands]
        found = self.append(name, given, attrs, types)
        return [Value(self, r, tuple(ty[0]), ty[1]) for r, ty in zip(found, types)]

    def collective(self, x: Value, kind: str, attrs: dict[str, Any]) -> Value:
        """Append a collective. On all ranks it comes after all earlier collectives."""
        operands = [x] if self.order is None else [x, self.order]
        attrs = {"kind": kind, "sequence": self.collectives, **attrs}
        infer = OPS["collective"].infer
        assert infer is not None
        types = infer([v.type for v in operands], attrs)
        self.collectives += 1
        value, self.order = self.create("collective", operands, attrs, types)
        return value

    def __call__(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append `gflow.<name>`; the result type follows from the op's shape rule."""
        infer = OPS[name].infer
        assert infer is not None
        types = infer([TensorType(v.shape, v.dtype) for v in operands], attrs)
        return self.create(name, operands, attrs, types)[0]

    def full(self, value: Number, shape: Sequence[int], dtype: str) -> Value:
        """A splat constant; for a number that depends on dynamic sizes, the number in this call.

        Raises:
            Unsupported: there are no kernels for the dtype.
        """
        shape = tuple(shape)
        if type(value) is int and varies(value):
            return self.broadcast(self.convert(self.number_of(value), dtype), shape)
        if dtype in FLOATS:
            try:
                value = float(value)
            except OverflowError:
                value = float("inf") if value > 0 else float("-inf")
            key: Any = (struct.pack("d", value), shape, dtype)
        elif dtype == "i1":
            value = bool(value)
            key = (value, shape, dtype)
        elif not has_kernels(dtype):
            raise Unsupported(f"constants of {dtype}")
        else:
            value = _wrap_integer(value, dtype)
            key = (value, shape, dtype)
        found = self._constants.get(key)
        if found is None:
            ty = self.mlir_type(shape, dtype)
            element = self.element_type(dtype)
            if dtype in FLOATS:
                scalar: ir.Attribute = ir.FloatAttr.get(element, value)
            else:
                scalar = ir.IntegerAttr.get(element, int(value))
            attr = ir.DenseElementsAttr.get_splat(ty, scalar)
            found = self.create("constant", [], {"value": attr}, [(shape, dtype)])[0]
            found.const = value
            self._constants[key] = found
        return found

    def number_of(self, value: int) -> Value:
        """A dynamic integer, as a scalar computed from the size."""
        symbol = extents.current()
        assert symbol is not None
        found = self._constants.get(("size", value))
        if found is None:
            found = horner(symbol.coefficients(value), [self.sizes[s.name] for s in symbol.each])
            found = self._constants["size", value] = Value(self, found.ir, (), "i64")
        return found

    def quotient(self, a: int, b: int) -> Any:
        """a / b as a number; for dynamic sizes, the quotient in this call."""
        if varies(a) or varies(b):
            return self.full(a, (), "f64") / self.full(b, (), "f64")
        return a / b if b > 0 else math.nan

    def dense(self, array: np.ndarray, dtype: str) -> Value:
        """A constant with the elements of `array` (which holds `dtype`'s bytes)."""
        attr = dense_attribute(array, TensorType(tuple(array.shape), dtype))
        return self.create("constant", [], {"value": attr}, [(array.shape, dtype)])[0]

    def iota(self, shape: Sequence[int], dim: int, dtype: str) -> Value:
        """Each element's index along `dim`; an equal iota is emitted once."""
        shape = tuple(shape)
        key = ("iota", shape, dim, dtype)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self("iota", shape=shape, dim=dim, dtype=dtype)
        return found

    # -- elementwise

    def convert(self, x: Value, dtype: str) -> Value:
        """`x` converted to a dtype; constants are converted directly.

        Raises:
            Unsupported: there are no kernels for one of the dtypes.
        """
        if x.dtype == dtype:
            return x
        if not (has_kernels(dtype) and has_kernels(x.dtype)):
            raise Unsupported(f"conversion from {x.dtype} to {dtype}")
        if x.const is not None and x.dtype not in HALVES and dtype != "ui8":
            value = x.const
            if dtype in FLOATS or abs(value) < 2**31:
                if dtype not in FLOATS and dtype != "i1":
                    value = int(value)
                return self.full(value != 0 if dtype == "i1" else value, x.shape, dtype)
        key = (x.ir, x.number, dtype)
        result = self._repeated.get(key)
        if result is None:
            result = self._repeated[key] = self("convert", x, dtype=dtype)
            result.number = x.number
        return result

    def pair(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Two operands (one may be a Python number), converted to one shape and type.

        Raises:
            AssertionError: the rule passes values of two dtypes.
        """
        if not isinstance(a, Value):
            return self.full(a, b.shape, b.dtype), b
        if not isinstance(b, Value):
            return a, self.full(b, a.shape, a.dtype)
        if a.dtype != b.dtype:
            if a.number:
                a = self.convert(a, b.dtype)
            elif b.number:
                b = self.convert(b, a.dtype)
            else:
                raise AssertionError(f"mixed element types {a.dtype} and {b.dtype}")
        if a.shape != b.shape:
            shape = broadcast_shapes(a.shape, b.shape)
            a, b = self.broadcast(a, shape), self.broadcast(b, shape)
        return a, b

    def binary(self, name: str, a: Any, b: Any) -> Value:
        """An op of two operands, broadcast and converted to one type first."""
        return self(name, *self.pair(a, b))

    def compare(self, predicate: str, a: Any, b: Any) -> Value:
        """Booleans. predicate: eq, ne, lt, le, gt or ge."""
        return self("compare", *self.pair(a, b), predicate=predicate)

    def select(self, pred: Value, a: Any, b: Any) -> Value:
        """`a` where `pred`, else `b`; numbers and shapes are adapted.

        Raises:
            AssertionError: the rule passes two numbers and no tensor.
        """
        if isinstance(a, Value) or isinstance(b, Value):
            a, b = self.pair(a, b)
        else:
            raise AssertionError("select needs a tensor")
        shape = broadcast_shapes(pred.shape, a.shape)
        return self("select", self.broadcast(pred, shape), self.broadcast(a, shape),
                    self.broadcast(b, shape))  # fmt: skip

    def maximum(self, a: Any, b: Any) -> Value:
        """The larger one, elementwise; NaN where one is."""
        return self.binary("maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Value:
        """The smaller one, elementwise; NaN where one is."""
        return self.binary("minimum", a, b)

    # -- shape

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int] | None = None) -> Value:
        """`x` repeated to a shape. dims: the dimension of the result for each of its dimensions; by default the last
        ones."""
        shape = tuple(shape)
        if x.shape == shape and (dims is None or tuple(dims) == tuple(range(len(shape)))):
            return x
        if x.const is not None:
            return self.full(x.const, shape, x.dtype)
        if dims is None:
            dims = range(len(shape) - len(x.shape), len(shape))
        key = (x.ir, shape, tuple(dims))
        result = self._repeated.get(key)
        if result is None:
            result = self._repeated[key] = self("broadcast", x, shape=shape, dims=key[2])
        return result

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` with another shape; a constant becomes a new constant."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.const is not None:
            return self.full(x.const, shape, x.dtype)
        return self("reshape", x, shape=shape)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """`x` with its dimensions in another order; a constant becomes a new constant."""
        permutation = tuple(permutation)
        if permutation == tuple(range(len(permutation))):
            return x
        if x.const is not None:
            return self.full(x.const, [x.shape[p] for p in permutation], x.dtype)
        return self("transpose", x, permutation=permutation)

    def slice(self, x: Value, dim: int, start: int, limit: int, step: int = 1) -> Value:
        """x[start:limit:step] along one dimension.

        Raises:
            Unsupported: the limit is before the start for some sizes only.
        """
        if not is_ordered(start, limit):
            if not is_ordered(limit, start):
                raise Unsupported("a slice that is empty for some sizes")
            limit = start
        if start == 0 and limit == x.shape[dim] and step == 1:
            return x
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dim], limits[dim], strides[dim] = start, limit, step
        return self("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], value: Number = 0) -> Value:
        """`x` with `low` and `high` elements of a value before and after it, by dimension.

        Raises:
            Unsupported: with dynamic sizes, an amount is negative for some of them.
        """
        if not any(low) and not any(high):
            return x
        if not all(is_ordered(0, n) for n in (*low, *high)):
            raise Unsupported("padding that is negative for some sizes")
        low, high = list(low), list(high)
        for dim, (before, after) in enumerate(zip(low, high)):
            if min(before, after) < 0:  # becomes less as a size grows, so no shape can have it
                inside, found = self.placed(x, dim, before, before + x.shape[dim] + after)
                x = self.select(inside, found, value)
                low[dim] = high[dim] = 0
        if not any(low) and not any(high):
            return x
        return self("pad", x, self.full(value, (), x.dtype), low=tuple(low), high=tuple(high))

    def placed(self, x: Value, dim: int, start: int, size: int) -> tuple[Value, Value]:
        """`x` along a dimension of `size`, from `start` on: where its elements are, and these elements. Elements
        elsewhere are some of `x`.

        Raises:
            Unsupported: x has no elements along the dimension for some sizes.
        """
        count = x.shape[dim]
        if not is_ordered(1, count):
            raise Unsupported("a dimension without elements for some sizes")
        position = self.iota((size,), 0, "i64") - start
        index = self.minimum(self.maximum(position, 0), count - 1)
        inside = position.ge(0) & position.lt(count)
        found = self("take", x, index, dim=dim)
        return self.broadcast(inside, found.shape, [dim]), found

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        """Values concatenated along a dimension, by several ops if they have too many types for one."""
        xs = [x for x in xs if x.shape[dim] != 0] or [xs[0]]
        while len(xs) > 1:  # an op has few groups of operands of one type
            joined, rest = [xs[0]], list(xs[1:])
            runs = 1
            while rest and (runs < MIXED_GROUPS or rest[0].shape == joined[-1].shape):
                runs += rest[0].shape != joined[-1].shape
                joined.append(rest.pop(0))
            xs = [self("concatenate", *joined, dim=dim), *rest]
        return xs[0]

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """`x` with a dimension of size 1 at `dim`, which counts from 0."""
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def keep(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """A value reduced over `dims` of `shape`, with these dimensions restored as 1."""
        return self.reshape(x, tuple(1 if d in dims else s for d, s in enumerate(shape)))

    # -- reductions

    def reduce(
        self,
        x: Value,
        kind: str,
        dims: Sequence[int],
        keepdim: bool = False,
        dtype: str | None = None,
    ) -> Value:
        """A reduction over `dims`, which must be non-negative.

        Raises:
            Unsupported: a maximum or minimum over no elements.
        """
        dims = tuple(sorted(set(dims)))
        if kind in ("max", "min", "argmax", "argmin") and any(x.shape[d] == 0 for d in dims):
            raise Unsupported(f"{kind} over zero elements")
        if not dims:
            result = x if dtype is None else x.to(dtype)
        else:
            result = self("reduce", x, kind=kind, dims=dims, dtype=dtype)
        return self.keep(result, x.shape, dims) if keepdim else result

    def mean(self, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
        """The sum over dimensions, divided by their number of elements, in the value's own dtype."""
        count = 1
        for d in dims:
            count *= x.shape[d]
        return self.reduce(x, "sum", dims, keepdim) / count


def broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The joint shape of two shapes, aligned at the last dimension."""
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + a
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b))


_BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "ui8": 8, "ui16": 16, "ui32": 32, "ui64": 64}


def _wrap_integer(value: Number, dtype: str) -> int:
    """The number as an element of `dtype`, wrapping around as a C cast does."""
    if value != value or value in (float("inf"), float("-inf")):
        raise Unsupported("an infinity or NaN as an integer")
    bits = _BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    if not dtype.startswith("u") and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return wrapped

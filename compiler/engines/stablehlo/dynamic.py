"""Dimensions that vary, in a StableHLO module: shapes with `?`, and ops that take sizes as operands.

The writer's rows write a module whose sizes are stand-ins (`gflow.dialects.extents`):

    func.func public @main(%n: tensor<i64>, %x: tensor<1000000007x4xf32>) -> tensor<4000000028xf32> {
      %0 = stablehlo.reshape %x : (tensor<1000000007x4xf32>) -> tensor<4000000028xf32>

becomes

    func.func public @main(%x: tensor<?x4xf32>) -> tensor<?xf32> {
      %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
      %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<i64>
      %2 = stablehlo.multiply %1, %c4 : tensor<i64>
      %3 = stablehlo.reshape %2 : (tensor<i64>) -> tensor<1xi64>
      %4 = stablehlo.dynamic_reshape %x, %3 : (tensor<?x4xf32>, tensor<1xi64>) -> tensor<?xf32>

which is what JAX exports with symbolic dimensions. Each size is computed once, at the beginning of the function. There
are JAX's assertions as well: sizes lie in their ranges, and shapes of arguments agree with them. What refines the
module for static shapes evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np

from gflow.dialects.extents import current, varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, type_of

from ..form import EngineError
from ..sizes import Found, computed, is_size, marked, size_in
from .writer import Writer

_SCALAR = TensorType((), "i64")


def make_dynamic(main: func.FuncOp, given: Sequence[int]) -> list[int]:
    """Rewrite a function whose dynamic sizes are represented by primes (`gflow.dialects.extents`), in place.

    Args:
        main: the function.
        given: the numbers of the arguments that are sizes, the first size first.

    Returns:
        The arguments that were removed: sizes that can be computed from the shape of another argument.

    Raises:
        EngineError: an op depends on a size in a way that StableHLO cannot express.
    """
    return _Dynamic(main, given).run()


class _Dynamic:
    """The rewriting of one function. Values keep their static types until the end."""

    def __init__(self, main: func.FuncOp, given: Sequence[int]) -> None:
        self._main, self._given, self._w = main, given, Writer()
        self._block = main.regions[0].blocks[0]
        self._ops = [o.operation for o in self._block.operations]
        self._sizes: list[ir.Value] = []
        self._computed: dict[int, ir.Value] = {}
        self._vectors: dict[tuple[int, ...], ir.Value] = {}

    def run(self) -> list[int]:
        symbol = current()
        assert symbol is not None
        types = [type_of(a) for a in self._block.arguments]
        found = {n: size_in(symbol, which, types) for which, n in enumerate(self._given)}
        shown = {n: at for n, at in found.items() if at is not None}
        with ir.InsertionPoint(self._ops[0]), self._main.location:
            self._sizes = [self._size(n, shown.get(n)) for n in self._given]
            self._check_shapes(types, shown)
            end = self._w.splat(0, _SCALAR).owner.operation  # of what is computed at the beginning
        self._beginning = ir.InsertionPoint(end)
        for op in self._ops:
            rewrite = _REWRITES.get(op.name)
            with op.location, ir.InsertionPoint(op):
                new = None if rewrite is None else rewrite(self, op)
            if new is not None:
                op.results[0].replace_all_uses_with(new)
                op.erase()
        end.erase()
        dropped = sorted(shown, reverse=True)
        for n in dropped:
            self._block.erase_argument(n)
        self._set_types()
        _, left = marked(str(self._main))
        if left := tuple(n for n in left if is_size(n)):
            raise EngineError(f"StableHLO has no form for what depends on {symbol.text(left[0])}")
        return dropped

    def _set_types(self) -> None:
        """Replace sizes that are dynamic by `?` in all types."""
        for value in self._block.arguments:
            value.set_type(_dynamic(value.type))
        for op in self._block.operations:
            for result in op.operation.results:
                result.set_type(_dynamic(result.type))
        end = self._ops[-1]
        kind = ir.FunctionType.get(
            [a.type for a in self._block.arguments], [v.type for v in end.operands]
        )
        self._main.attributes["function_type"] = ir.TypeAttr.get(kind)

    # -- numbers

    def _check_shapes(self, types: Sequence[TensorType], shown: Mapping[int, Found]) -> None:
        """Add assertions of each size's range, and of each dynamic dimension from which no size was read."""
        symbol, w = current(), self._w
        assert symbol is not None
        for size, own in zip(self._sizes, symbol.each):
            for predicate, bound in (("ge", own.least), ("le", own.most)):
                right = w.compare(predicate, size, w.splat(bound, _SCALAR))
                text = f"{own.name} must be {own.least} to {own.most}, and is {{0}}"
                self._assert(right, text, size)
        read = {(at.argument, at.dim) for at in shown.values() if (at.rest, at.slope) == (0, 1)}
        for argument, ty in zip(self._block.arguments, types):
            for dim, extent in enumerate(ty.shape):
                if not varies(extent) or (argument.arg_number, dim) in read:
                    continue
                found = self._dimension(argument, dim)
                wanted = computed(extent, self._sizes, self._combine)
                name = (
                    argument.location.name_str if isinstance(argument.location, ir.NameLoc) else ""
                )
                text = f"dimension {dim} of {name or f'argument {argument.arg_number}'} must be {symbol.text(extent)}"
                right = w.compare("eq", found, wanted)
                self._assert(right, f"{text} = {{1}}, and is {{0}}", found, wanted)

    def _assert(self, right: ir.Value, message: str, *shown: ir.Value) -> None:
        ir.Operation.create(
            "stablehlo.custom_call", [], [right, *shown],
            {
                "call_target_name": ir.StringAttr.get("shape_assertion"),
                "api_version": ir.Attribute.parse("2 : i32"),
                "has_side_effect": ir.BoolAttr.get(True),
                "error_message": ir.StringAttr.get(message),
            },
        )  # fmt: skip

    def _dimension(self, x: ir.Value, dim: int) -> ir.Value:
        w = self._w
        size = w.one("get_dimension_size", [x], TensorType((), "i32"), dimension=f"{dim} : i64")
        return w.convert(size, "i64")

    def _size(self, n: int, at: Found | None) -> ir.Value:
        """A size as tensor<i64>: computed from a dimension, or the argument itself."""
        w, arguments = self._w, self._block.arguments
        if at is None:
            return arguments[n]
        size = self._dimension(arguments[at.argument], at.dim)
        if at.rest:
            size = w.one("subtract", [size, w.splat(at.rest, _SCALAR)], _SCALAR)
        if at.slope != 1:
            size = w.one("divide", [size, w.splat(at.slope, _SCALAR)], _SCALAR)
        arguments[n].replace_all_uses_with(size)
        return size

    def _number(self, value: int) -> ir.Value:
        """An integer that depends on a size, as tensor<i64>; computed once."""
        found = self._computed.get(value)
        if found is None:
            with self._beginning:
                found = self._computed[value] = computed(value, self._sizes, self._combine)
        return found

    def _combine(self, kind: str, x: ir.Value, y: ir.Value | int) -> ir.Value:
        right = self._w.splat(y, _SCALAR) if isinstance(y, int) else y
        return self._w.one(kind, [x, right], _SCALAR)

    def _vector(self, values: Sequence[int]) -> ir.Value:
        """Integers, some of which depend on a size, as tensor<?xi64>; computed once."""
        key = tuple(values)
        found = self._vectors.get(key)
        if found is None:
            with self._beginning:
                found = self._vectors[key] = self._made_vector(key)
        return found

    def _made_vector(self, values: tuple[int, ...]) -> ir.Value:
        w = self._w
        parts: list[ir.Value] = []
        for dynamic, run in groupby(values, varies):
            given = list(run)
            if dynamic:
                parts += [w.reshape(self._number(n), (1,)) for n in given]
            else:
                parts.append(w.array(np.array(given, np.int64), "i64"))
        if len(parts) == 1:
            return parts[0]
        return w.one("concatenate", parts, TensorType((len(values),), "i64"), dimension="0 : i64")

    # -- ops

    def _made(
        self,
        op: ir.Operation,
        name: str,
        operands: Sequence[ir.Value],
        *kept: str,
        **more: ir.Attribute,
    ) -> ir.Value:
        """Build an op that replaces `op`. kept: the names of attributes that are copied from `op`."""
        attributes = {k: op.attributes[k] for k in kept if k in op.attributes}
        types = [op.results[0].type]
        return ir.Operation.create(
            f"stablehlo.{name}", types, list(operands), attributes | more
        ).results[0]

    def _varied(self, op: ir.Operation) -> tuple[int, ...] | None:
        """The shape of the result if it is dynamic, else None."""
        shape = type_of(op.results[0]).shape
        return shape if any(map(varies, shape)) else None

    def _constant(self, op: ir.Operation) -> ir.Value | None:
        """A splat with a dynamic shape, or of a number that depends on a size."""
        value, ty = op.attributes["value"], type_of(op.results[0])
        number, shape = _splat_of(value), self._varied(op)
        if number is not None and is_size(number):
            one = self._w.convert(self._number(number), ty.dtype)
        elif shape is None:
            return None
        else:
            assert isinstance(value, ir.DenseElementsAttr)
            assert value.is_splat
            scalar = TensorType((), ty.dtype)
            splat = ir.DenseElementsAttr.get_splat(scalar.mlir(), value.get_splat_value())
            one = self._w.constant(splat, scalar)
        if shape is None:
            return self._w.broadcast(one, ty.shape, ()) if ty.shape else one
        none = ir.DenseI64ArrayAttr.get([])
        given = [one, self._vector(shape)]
        return self._made(op, "dynamic_broadcast_in_dim", given, broadcast_dimensions=none)

    def _broadcast(self, op: ir.Operation) -> ir.Value | None:
        shape = self._varied(op)
        if shape is None:
            return None
        # with dynamic sizes, a reader could not infer which dimensions are expanded
        source, dims = type_of(op.operands[0]).shape, _numbers(op, "broadcast_dimensions")
        kept = [d for d, at in enumerate(dims) if source[d] == shape[at]]
        grown = [d for d in range(len(dims)) if d not in kept]
        return self._made(
            op, "dynamic_broadcast_in_dim", [op.operands[0], self._vector(shape)], "broadcast_dimensions",
            known_expanding_dimensions=ir.DenseI64ArrayAttr.get(grown),
            known_nonexpanding_dimensions=ir.DenseI64ArrayAttr.get(kept),
        )  # fmt: skip

    def _reshape(self, op: ir.Operation) -> ir.Value | None:
        shape = type_of(op.results[0]).shape
        if not any(map(varies, (*shape, *type_of(op.operands[0]).shape))):
            return None
        return self._made(op, "dynamic_reshape", [op.operands[0], self._vector(shape)])

    def _iota(self, op: ir.Operation) -> ir.Value | None:
        shape = self._varied(op)
        if shape is None:
            return None
        return self._made(op, "dynamic_iota", [self._vector(shape)], "iota_dimension")

    def _slice(self, op: ir.Operation) -> ir.Value | None:
        given = [_numbers(op, n) for n in ("start_indices", "limit_indices", "strides")]
        if not any(varies(n) for numbers in given for n in numbers):
            return None
        return self._made(op, "real_dynamic_slice", [op.operands[0], *map(self._vector, given)])

    def _pad(self, op: ir.Operation) -> ir.Value | None:
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        given = [_numbers(op, n) for n in names]
        if not any(varies(n) for numbers in given for n in numbers):
            return None
        return self._made(op, "dynamic_pad", [*op.operands, *map(self._vector, given)])

    def _gather(self, op: ir.Operation) -> ir.Value | None:
        sizes = _numbers(op, "slice_sizes")
        if not any(map(varies, sizes)):
            return None
        kept = ("dimension_numbers", "indices_are_sorted")
        return self._made(op, "dynamic_gather", [*op.operands, self._vector(sizes)], *kept)

    def _convolution(self, op: ir.Operation) -> ir.Value | None:
        padding = np.array(ir.DenseIntElementsAttr(op.attributes["padding"]))
        if not any(map(varies, padding.ravel().tolist())):
            return None
        rows = self._w.reshape(self._vector(padding.ravel().tolist()), padding.shape)
        kept = (
            "window_strides", "lhs_dilation", "rhs_dilation", "window_reversal", "dimension_numbers",
            "feature_group_count", "batch_group_count",
        )  # fmt: skip
        return self._made(op, "dynamic_conv", [*op.operands, rows], *kept)


def _dynamic(ty: ir.Type) -> ir.Type:
    """The type with `?` for dynamic dimensions."""
    if not isinstance(ty, ir.RankedTensorType):
        return ty
    shape = [ty.shape[d] for d in range(ty.rank)]
    if not any(map(varies, shape)):
        return ty
    unknown = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([unknown if varies(s) else s for s in shape], ty.element_type)


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _splat_of(value: ir.Attribute) -> int | None:
    """The integer of a splat constant; None for other constants."""
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
        return None
    number = value.get_splat_value()
    return int(number.value) if isinstance(number, ir.IntegerAttr) else None


_REWRITES: dict[str, Callable[[_Dynamic, ir.Operation], ir.Value | None]] = {
    "stablehlo.constant": _Dynamic._constant,
    "stablehlo.broadcast_in_dim": _Dynamic._broadcast,
    "stablehlo.reshape": _Dynamic._reshape,
    "stablehlo.iota": _Dynamic._iota,
    "stablehlo.slice": _Dynamic._slice,
    "stablehlo.pad": _Dynamic._pad,
    "stablehlo.gather": _Dynamic._gather,
    "stablehlo.convolution": _Dynamic._convolution,
}

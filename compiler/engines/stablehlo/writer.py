"""The builder of StableHLO ops at the current insertion point, which the rows of the table use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gflow.dialects.constants import as_resource, element_bytes
from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, HALVES, UNSIGNED, TensorType, type_of

#: StableHLO's comparison direction, by the dialect's predicate
DIRECTIONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


def numbers(values: Sequence[int]) -> str:
    """An attribute of 64-bit integers, as text."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def pairs(values: Sequence[tuple[int, int]]) -> str:
    """An attribute of pairs, as text."""
    listed = ", ".join(f"[{a}, {b}]" for a, b in values)
    return f"dense<[{listed}]> : tensor<{len(values)}x2xi64>"


def compare_type(dtype: str) -> str:
    """StableHLO's comparison type for a dtype."""
    return "FLOAT" if dtype in FLOATS else "UNSIGNED" if dtype in (*UNSIGNED, "i1") else "SIGNED"


class Writer:
    """A builder of ops by name, with attributes as text."""

    def op(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[TensorType],
        regions: int = 0,
        **attributes: str | ir.Attribute,
    ) -> ir.Operation:
        """Build a `stablehlo.<name>`."""
        given = {
            key: ir.Attribute.parse(value) if isinstance(value, str) else value
            for key, value in attributes.items()
        }
        return ir.Operation.create(
            f"stablehlo.{name}", [t.mlir() for t in results], list(operands), given, regions=regions
        )

    def one(
        self, name: str, operands: Sequence[ir.Value], ty: TensorType, **attributes: str
    ) -> ir.Value:
        """Build an op with one result; returns the result."""
        return self.op(name, operands, [ty], 0, **attributes).results[0]

    def constant(self, attribute: ir.Attribute, ty: TensorType) -> ir.Value:
        """A constant with its elements in the attribute, since engines do not read dense resources."""
        if as_resource(attribute) is not None:
            attribute = ir.DenseElementsAttr.get(
                _array(element_bytes(attribute, ty), ty), type=ty.mlir()
            )
        return self.op("constant", [], [ty], value=attribute).results[0]

    def splat(self, value: float, ty: TensorType) -> ir.Value:
        """A splat constant."""
        element = ty.mlir().element_type
        scalar: ir.Attribute
        if ty.dtype in FLOATS:
            scalar = ir.FloatAttr.get(element, float(value))
        else:
            scalar = ir.IntegerAttr.get(element, int(value))
        return self.constant(ir.DenseElementsAttr.get_splat(ty.mlir(), scalar), ty)

    def array(self, values: np.ndarray, dtype: str) -> ir.Value:
        """A constant with the elements of an array, whose bytes have the element type `dtype`."""
        ty = TensorType(values.shape, dtype)
        return self.constant(
            ir.DenseElementsAttr.get(np.ascontiguousarray(values), type=ty.mlir()), ty
        )

    def convert(self, x: ir.Value, dtype: str) -> ir.Value:
        """`stablehlo.convert`; the value itself if it has the dtype."""
        ty = type_of(x)
        return x if ty.dtype == dtype else self.one("convert", [x], TensorType(ty.shape, dtype))

    def wide(self, x: ir.Value) -> ir.Value:
        """The value in float32, if it is half precision."""
        return self.convert(x, "f32") if type_of(x).dtype in HALVES else x

    def compare(self, predicate: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """stablehlo.compare. predicate: eq, ne, lt, le, gt or ge."""
        ty = type_of(a)
        return self.one(
            "compare",
            [a, b],
            TensorType(ty.shape, "i1"),
            comparison_direction=f"#stablehlo<comparison_direction {DIRECTIONS[predicate]}>",
            compare_type=f"#stablehlo<comparison_type {compare_type(ty.dtype)}>",
        )

    def broadcast(self, x: ir.Value, shape: Sequence[int], dims: Sequence[int]) -> ir.Value:
        """`stablehlo.broadcast_in_dim`. dims: the dimension of `shape` to which each dimension of `x` maps."""
        ty = TensorType(tuple(shape), type_of(x).dtype)
        return self.one("broadcast_in_dim", [x], ty, broadcast_dimensions=numbers(dims))

    def transpose(self, x: ir.Value, permutation: Sequence[int]) -> ir.Value:
        """stablehlo.transpose."""
        ty = type_of(x)
        new = TensorType(tuple(ty.shape[p] for p in permutation), ty.dtype)
        return self.one("transpose", [x], new, permutation=numbers(permutation))

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """stablehlo.reshape."""
        return self.one("reshape", [x], TensorType(tuple(shape), type_of(x).dtype))

    def combiner(self, op: ir.Operation, name: str | None, dtype: str) -> None:
        """Build the body of a reduction: `stablehlo.<name>` of two scalars; None: the body returns the second."""
        scalar = TensorType((), dtype)
        block = op.regions[0].blocks.append(
            scalar.mlir(), scalar.mlir(), arg_locs=[op.location, op.location]
        )
        with ir.InsertionPoint(block):
            given = list(block.arguments)
            self.op("return", [given[1] if name is None else self.one(name, given, scalar)], [])


_FORMATS = {"i1": "?", "f16": "<f2", "f32": "<f4", "f64": "<f8", "bf16": "<u2"}


def _array(data: bytes, ty: TensorType) -> np.ndarray:
    code = _FORMATS.get(ty.dtype) or f"<{'u' if ty.dtype.startswith('u') else 'i'}{ty.itemsize}"
    return np.frombuffer(data, dtype=code).reshape(ty.shape)

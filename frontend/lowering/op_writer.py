"""Appends ops of the dialect to a block. Locations, marks, types and attributes are created once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gflow.dialects import extents
from gflow.dialects.attributes import to_mlir
from gflow.dialects.builder import segment_sizes
from gflow.dialects.extents import varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.tracing.data.values import SourceLoc, TraceOp

from .dtypes import Unsupported


class OpWriter:
    """Appends ops to a block; must be used inside its MLIR context."""

    def __init__(self, block: ir.Block) -> None:
        self.block = block
        self._ip = ir.InsertionPoint(block)
        self._loc = ir.Location.unknown()
        self._marks: dict[str, ir.Attribute] = {}
        self._locs: dict[SourceLoc, ir.Location] = {}
        self._types: dict[tuple[tuple[int, ...], str], ir.Type] = {}
        self._elements: dict[str, ir.Type] = {}
        self._attrs: dict[Any, ir.Attribute] = {}

    def at(self, loc: SourceLoc) -> None:
        """Ops emitted from now on come from `loc`."""
        found = self._locs.get(loc)
        if found is None:
            found = self._locs[loc] = ir.Location.name(
                f"{loc.phase}:{loc.module}", childLoc=ir.Location.file(loc.file, loc.line, 0)
            )
        self._loc = found

    def mark(self, op: TraceOp) -> None:
        """Ops emitted from now on belong to the marked module calls and the phase of `op`."""
        self._marks = {}
        if op.scope:
            scope = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in op.scope])
            self._marks["gflow.scope"] = scope
        if op.loc.phase != "forward":
            self._marks["gflow.phase"] = ir.StringAttr.get(op.loc.phase)

    def mlir_type(self, shape: tuple[int, ...], dtype: str) -> ir.Type:
        """The tensor type of a shape and dtype; dynamic sizes are `?` in it.

        Raises:
            Unsupported: a dynamic size is negative somewhere in its range, or decreases as the program's size grows.
        """
        key = (shape, dtype)
        found = self._types.get(key)
        if found is None:
            element = self.element_type(dtype)
            for size in shape:
                symbol = extents.current()
                if symbol is not None and varies(size) and not symbol.is_count(size):
                    raise Unsupported(f"a size that is negative, {symbol.text(size)} with {symbol}")
                if size < 0:  # with the stand-in of a dynamic size
                    text = size if symbol is None else f"{symbol.text(size)} with {symbol}"
                    raise Unsupported(f"a size that becomes less as another grows, {text}")
            found = self._types[key] = ir.RankedTensorType.get(list(shape), element)
        return found

    def _attr(self, name: str, key: str, value: Any) -> ir.Attribute:
        spec = OPS[name].attrs[key]
        if isinstance(value, ir.Attribute):
            return value
        if isinstance(value, list):
            value = tuple(value)
        cache_key = (spec.kind, value)
        found = self._attrs.get(cache_key)
        if found is None:
            found = self._attrs[cache_key] = to_mlir(spec, value)
        return found

    def element_type(self, dtype: str) -> ir.Type:
        """The type of elements of a dtype."""
        found = self._elements.get(dtype)
        if found is None:
            found = self._elements[dtype] = ir.Type.parse(dtype)
        return found

    def append(
        self,
        name: str,
        operands: Sequence[tuple[ir.Value, tuple[int, ...], str]],
        attrs: Mapping[str, Any],
        types: Sequence[tuple[Sequence[int], str]],
    ) -> Sequence[ir.Value]:
        """Append `gflow.<name>` at the current location.

        Args:
            operands: values with their shapes and dtypes.
            attrs: plain data or attributes by name; those that are None are left out.
            types: shape and dtype of each result.

        Returns:
            The op's results.
        """
        definition = OPS[name]
        attributes = {k: self._attr(name, k, v) for k, v in attrs.items() if v is not None}
        results = [self.mlir_type(tuple(shape), dtype) for shape, dtype in types]
        if definition.mixed:
            operand_types = [self.mlir_type(shape, dtype) for _, shape, dtype in operands]
            attributes["operandSegmentSizes"] = segment_sizes(operand_types)
            if definition.results is None:
                attributes["resultSegmentSizes"] = segment_sizes(results)
        attributes.update(self._marks)
        op = ir.Operation.create(
            f"gflow.{name}",
            results=results,
            operands=[value for value, _, _ in operands],
            attributes=attributes,
            loc=self._loc,
            ip=self._ip,
        )
        return op.results

"""The rewriter of `gflow-simplify`: it applies rules to ops in program order, and visits each op once.

A rule matches an op and the producers of its operands, and returns the value that replaces the op's result, or None.
Operands precede their users and are already simplified, and new ops are simplified when a rule builds them. So one
sweep over the function reaches the fixed point of all rules, in time linear in the number of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gflow.dialects import builder
from gflow.dialects.attributes import from_mlir
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import OpDef
from gflow.dialects.ops import OPS
from gflow.dialects.types import NO_KERNELS, TensorType, type_of

from .rules import SPLAT, Kind, Rules, Scalar

_MAX_CHAIN = 100


class Node:
    """An op as plain data: its name without `gflow.`, operands and result; type and attributes are read on demand."""

    __slots__ = (
        "_attrs",
        "_type",
        "definition",
        "kind",
        "name",
        "op",
        "operands",
        "result",
        "rewriter",
    )

    def __init__(
        self, op: ir.Operation, definition: OpDef, operands: list[ir.Value], rewriter: Rewriter
    ) -> None:
        self.op = op
        self.definition = definition
        self.name = definition.name
        self.kind: Kind = definition.name
        self.operands = operands
        self.result: ir.Value = op.results[0]
        self.rewriter = rewriter
        self._attrs: dict[str, Any] | None = None
        self._type: TensorType | None = None

    @property
    def type(self) -> TensorType:
        """The type of the result."""
        found = self._type
        if found is None:
            found = self._type = type_of(self.result)
        return found

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes as plain Python data, as the builder takes them."""
        if self._attrs is None:
            self._attrs = self.rewriter.read_attributes(self.op, self.definition)
        return self._attrs


class Rewriter:
    """The interface for rules: queries about values, and building of ops."""

    def __init__(self, function: func.FuncOp, rules: Rules) -> None:
        self.rules = rules
        self.block = function.regions[0].blocks[0]
        self.fired: dict[str, int] = {}  # the number of applications of each rule
        self._nodes: dict[ir.Value, Node] = {}
        self._types: dict[ir.Value, TensorType] = {}
        self._splats: dict[ir.Value, Scalar] = {}
        self._constants: dict[tuple[TensorType, str, bytes], ir.Value] = {}
        self._anchor: ir.Operation | None = None
        self._place: tuple[ir.InsertionPoint, ir.Location] | None = None  # of the anchor
        #: ops that may be erased, with their results; users after their operands
        self._pure: list[tuple[ir.Operation, Sequence[ir.Value]]] = []
        self._depth = 0

    # -- queries

    def node(self, value: ir.Value, name: str | None = None) -> Node | None:
        """The producer of `value`, if it is an op of the dialect (named `name`, if that is given); otherwise None."""
        found = self._nodes.get(value)
        return found if found is not None and (name is None or found.name == name) else None

    def type(self, value: ir.Value) -> TensorType:
        """The type of `value`."""
        node = self._nodes.get(value)
        if node is not None:
            return node.type
        found = self._types.get(value)
        if found is None:
            found = self._types[value] = type_of(value)
        return found

    def splat(self, value: ir.Value) -> Scalar | None:
        """The number of a splat constant; None for other values."""
        return self._splats.get(value)

    def read_attributes(self, op: ir.Operation, definition: OpDef) -> dict[str, Any]:
        """The attributes of an op as plain data."""
        found: dict[str, Any] = {}
        attributes = op.attributes
        for name, spec in definition.attrs.items():
            if spec.optional and name not in attributes:
                continue
            attribute = attributes[name]
            found[name] = attribute if spec.kind == "elements" else from_mlir(spec, attribute)
        return found

    # -- building

    def build(
        self, name: str, operands: Sequence[ir.Value], attrs: dict[str, Any] | None = None
    ) -> ir.Value:
        """Build an op before the current one, and simplify it; returns its result."""
        anchor = self._anchor
        assert anchor is not None
        if self._place is None:
            self._place = ir.InsertionPoint(anchor), anchor.location
        point, location = self._place
        with point, location:
            op = builder.build_op(name, operands, attrs)
        return self._visit(Node(op, OPS[name], list(operands), self))

    def build_all(
        self, name: str, operands: Sequence[ir.Value], attrs: dict[str, Any]
    ) -> list[ir.Value]:
        """As `build`, for an op with several results; returns all of them."""
        assert self._anchor is not None
        with ir.InsertionPoint(self._anchor), self._anchor.location:
            op = builder.build_op(name, operands, attrs)
        results = list(op.results)
        self._pure.append((op, results))
        return results

    def constant(self, value: Scalar, ty: TensorType) -> ir.Value:
        """The splat constant `value` of type `ty`; equal constants share an op."""
        key = (ty, type(value).__name__, np.float64(value).tobytes() + repr(value).encode())
        if key not in self._constants:
            assert self._anchor is not None
            with ir.InsertionPoint.at_block_begin(self.block), self._anchor.location:
                made = builder.splat(value, ty)
            self._constants[key] = made
            self._note(Node(made.owner.operation, OPS["constant"], [], self))
        return self._constants[key]

    # -- the sweep

    def sweep(self) -> None:
        """Visit every op of the function once, then erase ops without users."""
        for view in list(self.block.operations):
            op = view.operation
            name = op.name
            definition = OPS.get(name[6:]) if name.startswith("gflow.") else None
            if definition is None:
                continue
            self._anchor, self._place = op, None
            if definition.regions or (definition.results != 1 and len(op.results) != 1):
                if definition.pure:
                    self._pure.append((op, list(op.results)))
                self.visit_other(op)
                continue
            node = Node(op, definition, list(op.operands), self)
            replacement = self._visit(node)
            if replacement is not node.result:
                node.result.replace_all_uses_with(replacement)
        for op, results in reversed(self._pure):
            for result in results:
                if next(iter(result.uses), None) is not None:
                    break
            else:
                op.erase()
        for table in (self._nodes, self._types, self._splats, self._constants):
            table.clear()
        self._pure.clear()

    def visit_other(self, op: ir.Operation) -> None:
        """Called for an op of the dialect that has regions, or more or fewer results than one."""

    def _note(self, node: Node) -> None:
        result = node.result
        self._nodes[result] = node
        if node.definition.pure:
            self._pure.append((node.op, (result,)))
        if node.name == "constant" and node.type.dtype not in NO_KERNELS:
            value = splat_of(node.op.attributes["value"])
            if value is not None:
                self._splats[result] = value
                node.kind = SPLAT

    def _visit(self, node: Node) -> ir.Value:
        self._note(node)
        nodes = self._nodes.get
        kinds = [found.kind if (found := nodes(v)) is not None else "" for v in node.operands]
        rules = self.rules.find(node.name, tuple(kinds))
        if not rules or self._depth > _MAX_CHAIN:
            return node.result
        self._depth += 1
        try:
            for rule in rules:
                replacement = rule(node, self)
                if replacement is not None:
                    name = rule.__name__
                    self.fired[name] = self.fired.get(name, 0) + 1
                    return replacement
        finally:
            self._depth -= 1
        return node.result


def splat_of(attribute: ir.Attribute) -> Scalar | None:
    """The number of a splat attribute; None for other attributes."""
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        element = attribute.get_splat_value()
        if isinstance(element, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
            return element.value
    return None

"""Sink reshapes that split dimensions below the ops that read them, to a reshape that joins these dimensions.

Linear layers compute [batch · position, channel], and the ops between them are written over [batch, position, channel].
A reshape between two ops keeps them from being one kernel, so the value in between is stored. The pass therefore moves
elementwise ops and reductions before the reshape, to the shape of the product. Their other operands (broadcasts,
constants, random numbers, other values) are reshaped to match.

Before:

    %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
    %2 = "gflow.broadcast"(%b) {dims = array<i64: 2>, shape = array<i64: 2, 4, 16>}
       : (tensor<16xf32>) -> tensor<2x4x16xf32>
    %3 = "gflow.add"(%1, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
    %4 = "gflow.reshape"(%3) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
    %5 = "gflow.matmul"(%4, %v) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>

After:

    %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %1 = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 8, 16>}
       : (tensor<16xf32>) -> tensor<8x16xf32>
    %2 = "gflow.add"(%0, %1) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %3 = "gflow.matmul"(%2, %v) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>

Last, the pass moves a reshape before the ops that widen half-precision values, and before a few ops on one such value
and values of rows, such as the normalized input that a norm's gradient reads. Kernels then read the half-precision
value, in the shape that they need, instead of a stored float32 value:

    %0 = "gflow.convert"(%x) {dtype = "f32"} : (tensor<8x4xbf16>) -> tensor<8x4xf32>
    %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 4, 4>} : (tensor<8x4xf32>) -> tensor<2x4x4xf32>

becomes

    %0 = "gflow.reshape"(%x) {shape = array<i64: 2, 4, 4>} : (tensor<8x4xbf16>) -> tensor<2x4x4xbf16>
    %1 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<2x4x4xbf16>) -> tensor<2x4x4xf32>

An operand that is computed in the split shape from such a value (the normalized sum of embeddings and positions, in the
norm's gradient) is computed again in the joined shape, if other ops read that value or one between.

An op is left unchanged if one of its operands is a broadcast that repeats along a part of a joined dimension (a table
of positions), a view whose dimensions cannot be joined without a copy, or a value that has no other reader. A reshape
of a collective's result stays, too: there is no kernel that the ops could join, and an update of a parameter by its
gradient is one kernel in the shape of the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.ir.ssa import read_body
from gflow.compiler.ir.views import VIEW_OPS, argument_strides
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import HALVES, TensorType, row_major_strides

from ..base import NoOptions, Pass
from ..simplify.rewriter import Node, Rewriter
from ..simplify.rules import ELEMENTWISE, Rules

_MAX_DEPTH = 12

RULES, _NARROW = Rules(), Rules()

#: the maximal number of ops between a half-precision value and a value computed from it
_DEEP = 4

#: for each dimension of a joined shape, the dimensions of the split shape that form it
Joined = tuple[tuple[int, ...], ...]


def joined_dims(shape: Sequence[int], split: Sequence[int]) -> Joined | None:
    """The groups of dimensions of `split` that form the dimensions of `shape`, in order; None if they do not."""
    found: list[tuple[int, ...]] = []
    d = 0
    for size in shape:
        start, covered = d, 1
        while d < len(split) and covered < size:
            covered *= split[d]
            d += 1
        if covered != size:
            return None
        found.append(tuple(range(start, d)))
    if not found or any(size != 1 for size in split[d:]):
        return None
    return (*found[:-1], (*found[-1], *range(d, len(split))))


class _Halves(Rewriter):
    """Reshapes of values that are computed from one half-precision value, and values of rows."""

    def narrow(
        self, value: ir.Value, shape: tuple[int, ...], kept: bool = False
    ) -> ir.Value | None:
        """`value` in `shape`, computed from a reshaped half-precision value of its size; None if that is not
        possible. kept: only if other ops read that value, or one between, so that it is in memory."""
        leaves: set[ir.Value] = set()
        if not self._follows(value, leaves, 0) or len(leaves) != 1:
            return None
        if kept and not self._is_shared(value):
            return None
        return self._moved(value, shape)

    def _follows(self, value: ir.Value, leaves: set[ir.Value], depth: int) -> bool:
        """Whether a value is computed from half-precision values of its size, which are added to `leaves`, and values
        of rows."""
        node = self.node(value)
        if self.splat(value) is not None:
            return True
        if node is None or depth > _DEEP:
            return False
        if node.name == "broadcast":
            return self._of_rows(node)
        if node.name == "convert" and self.type(node.operands[0]).dtype in HALVES:
            leaves.add(node.operands[0])
            return self._is_dense(node.operands[0])
        return node.name in ELEMENTWISE and all(
            self._follows(x, leaves, depth + 1) for x in node.operands
        )

    def _is_shared(self, value: ir.Value) -> bool:
        """Whether a value that `value` is computed from has several readers: the half-precision value, what it is
        rounded from, or one between."""
        node = self.node(value)
        if node is None or node.name not in ELEMENTWISE:
            return False
        rounds = node.name == "convert" and self.type(value).dtype in HALVES
        inner = [x for x in node.operands if self.type(x).shape == node.type.shape]
        return any(len(list(x.uses)) > 1 or (not rounds and self._is_shared(x)) for x in inner)

    def _is_dense(self, value: ir.Value) -> bool:
        """Whether an op computes the value, so that it is row-major."""
        while (node := self.node(value, "reshape")) is not None:
            (value,) = node.operands
        node = self.node(value)
        return node is not None and node.name not in VIEW_OPS

    def _of_rows(self, node: Node) -> bool:
        """Whether a broadcast repeats a value along the last dimension only."""
        (x,) = node.operands
        rows = tuple(range(node.type.rank - 1))
        return node.attrs["dims"] == rows and self.type(x).shape == node.type.shape[:-1]

    def _moved(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        number, node = self.splat(value), self.node(value)
        if number is not None:
            return self.constant(number, TensorType(shape, self.type(value).dtype))
        assert node is not None
        if node.name == "broadcast":
            rows = self.build("reshape", node.operands, {"shape": shape[:-1]})
            dims = tuple(range(len(shape) - 1))
            return self.build("broadcast", [rows], {"shape": shape, "dims": dims})
        if node.name == "convert" and self.type(node.operands[0]).dtype in HALVES:
            operands = [self.build("reshape", node.operands, {"shape": shape})]
        else:
            operands = [self._moved(x, shape) for x in node.operands]
        return self.build(node.name, operands, node.attrs)


class Sinker(_Halves):
    """The values that are splits of others.

    Args:
        scattered: arguments that are not row-major.
        sent: results of collectives.
    """

    def __init__(self, function: func.FuncOp) -> None:
        super().__init__(function, RULES)
        body = read_body(function)
        self.scattered = {
            body.values[v]
            for v, strides in zip(body.arguments, argument_strides(function, body))
            if strides != row_major_strides(body.types[v].shape)
        }
        self.sent = {v for o in body.ops if o.name.startswith("collective") for v in o.op.results}
        self._pure_of: dict[tuple[ir.Value, tuple[int, ...]], ir.Value | None] = {}

    def source(self, value: ir.Value) -> ir.Value | None:
        """The value that `value` is a split of; None if it is none."""
        node = self.node(value, "reshape")
        if node is None:
            return None
        (x,) = node.operands
        shape, split = self.type(x).shape, node.type.shape
        splits = len(shape) < len(split) and 0 not in shape and joined_dims(shape, split)
        return x if splits and not self._is_sent(x) else None

    def _is_sent(self, value: ir.Value) -> bool:
        """Whether a value is the result of a collective or a part of one, so no kernel produces it."""
        while (node := self.node(value)) is not None and node.name in ("slice", "reshape"):
            (value,) = node.operands
        return value in self.sent

    def reshaped(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """A reshape of `value`, or of what it is a reshape of."""
        value = self.origin(value)
        same = self.type(value).shape == shape
        return value if same else self.build("reshape", [value], {"shape": shape})

    def origin(self, value: ir.Value) -> ir.Value:
        """The value under a chain of reshapes."""
        while (node := self.node(value, "reshape")) is not None:
            (value,) = node.operands
        return value

    def joined(
        self, value: ir.Value, shape: tuple[int, ...], shared: bool = False
    ) -> ir.Value | None:
        """`value` in `shape`, without a copy; None if that is impossible or does not pay. shared: it is known to have
        several readers."""
        found = self._pure_value(value, shape, 0)
        if found is not None:
            return found
        origin = self.origin(value)
        node = self.node(origin)
        if origin in self.scattered or (node is not None and node.name in VIEW_OPS):
            return None
        computed = node is not None and node.name in (*ELEMENTWISE, "reduce")
        if computed and origin == value and len(list(value.uses)) == 1:
            # one kernel computes and reads it, which can read what it is computed from in another shape
            return self.narrow(value, shape, kept=not shared)
        return self.reshaped(value, shape)

    def _pure_value(self, value: ir.Value, shape: tuple[int, ...], depth: int) -> ir.Value | None:
        """`value` in `shape`, of joined values, numbers and broadcasts alone."""
        key = value, shape
        if key not in self._pure_of:
            self._pure_of[key] = self._joined_alone(value, shape, depth)
        return self._pure_of[key]

    def _joined_alone(self, value: ir.Value, shape: tuple[int, ...], depth: int) -> ir.Value | None:
        number, node = self.splat(value), self.node(value)
        if number is not None:
            return self.constant(number, TensorType(shape, self.type(value).dtype))
        if node is None or depth > _MAX_DEPTH:
            return None
        match node.name:
            case "reshape":
                x = self.source(value)
                return x if x is not None and self.type(x).shape == shape else None
            case "broadcast":
                return self._joined_broadcast(node, shape)
            case "random":
                return self.build("random", node.operands, {**node.attrs, "shape": shape})
            case name if name in ELEMENTWISE:
                parts = [self._pure_value(x, shape, depth + 1) for x in node.operands]
                known = [part for part in parts if part is not None]
                return self.build(name, known, node.attrs) if len(known) == len(parts) else None
        return None

    def _joined_broadcast(self, node: Node, shape: tuple[int, ...]) -> ir.Value | None:
        """A broadcast whose operand has all or nothing of each joined dimension."""
        (x,) = node.operands
        full = node.type.shape
        groups = joined_dims(shape, full)
        if groups is None:
            return None
        sizes = dict(zip(node.attrs["dims"], self.type(x).shape))
        kept: dict[int, int] = {}
        for d, group in enumerate(groups):
            own = [e for e in group if sizes.get(e, 1) != 1]
            if own and own != [e for e in group if full[e] != 1]:
                return None
            if own:
                kept[d] = prod(sizes[e] for e in own)
        shared = len(list(node.result.uses)) > 1
        inner = self._joined_operand(x, tuple(kept.values()), shared)
        if inner is None:
            return None
        return self.build("broadcast", [inner], {"shape": shape, "dims": tuple(kept)})

    def _joined_operand(
        self, value: ir.Value, shape: tuple[int, ...], shared: bool
    ) -> ir.Value | None:
        number = self.splat(value)
        if number is not None:
            return self.constant(number, TensorType(shape, self.type(value).dtype))
        wide = tuple(size for size in self.type(value).shape if size != 1)
        if wide == shape:
            return self.reshaped(value, shape)
        return self.joined(value, shape, shared)


@RULES.add("reshape", on=("reshape",))
def reshape_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """A reshape of a reshape: none, or one."""
    assert isinstance(b, Sinker)
    return b.reshaped(n.operands[0], n.type.shape)


@RULES.add(*ELEMENTWISE, on=("reshape",))
def elementwise(n: Node, b: Rewriter) -> ir.Value | None:
    """An elementwise op of a split value."""
    assert isinstance(b, Sinker)
    sources = [x for x in map(b.source, n.operands) if x is not None]
    shapes = {b.type(x).shape for x in sources}
    for shape in sorted(shapes, key=lambda s: (len(s), s)):
        parts = [b.joined(x, shape) for x in n.operands]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return b.reshaped(b.build(n.name, known, n.attrs), n.type.shape)
    return None


@RULES.add("reduce", on=("reshape",))
def reduction(n: Node, b: Rewriter) -> ir.Value | None:
    """A reduction of a split value over all of some joined dimensions."""
    assert isinstance(b, Sinker)
    x = b.source(n.operands[0])
    if x is None or n.attrs["kind"].startswith("arg"):
        return None
    split = b.type(n.operands[0]).shape
    groups = joined_dims(b.type(x).shape, split)
    assert groups is not None
    gone = set(n.attrs["dims"])
    dims = []
    for d, group in enumerate(groups):
        wide = {e for e in group if split[e] != 1}
        if wide <= gone and (wide or gone & set(group)):
            dims.append(d)
        elif wide & gone:
            return None
    reduced = b.build("reduce", [x], {**n.attrs, "dims": tuple(dims)})
    return b.reshaped(reduced, n.type.shape)


@RULES.add("take")
def look_up(n: Node, b: Rewriter) -> ir.Value | None:
    """A look-up of rows at indices of several dimensions: of one, then split."""
    assert isinstance(b, Sinker)
    table, index = n.operands
    shape = b.type(index).shape
    if len(shape) < 2 or n.attrs["dim"] != 0 or index in b.scattered or b.type(index).numel == 0:
        return None
    made = b.node(index)
    if made is not None and made.name in VIEW_OPS:
        return None
    flat = b.reshaped(index, (b.type(index).numel,))
    return b.reshaped(b.build("take", [table, flat], n.attrs), n.type.shape)


class _Narrower(_Halves):
    """Keeps values in half precision in memory: reshapes move before the ops that derive a value from one
    half-precision value."""

    def __init__(self, function: func.FuncOp) -> None:
        super().__init__(function, _NARROW)


@_NARROW.add("reshape", on=ELEMENTWISE)
def before_widening(n: Node, b: Rewriter) -> ir.Value | None:
    """Move a reshape before the ops that derive its operand from a half-precision value. The last dimension must
    stay."""
    assert isinstance(b, _Narrower)
    (x,) = n.operands
    same = n.type.rank > 1 and b.type(x).shape[-1:] == n.type.shape[-1:]
    return b.narrow(x, n.type.shape) if same and n.type.dtype == "f32" else None


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Move splits in one function, in place."""
    Sinker(function).sweep()
    _Narrower(function).sweep()


PASS = Pass("gflow-sink-reshapes", run, doc=__doc__)

"""Convert convolutions, and the ops between them, from channels-first to channels-last.

Every convolution with layout "NC*", gradients included, gets layout "N*C", except in float64 and one dimension. Its
result is a row-major channels-last tensor, and a transpose (a view without cost) gives the channels-first value.
Elementwise ops, reductions, pooling, pads, slices, concatenations and broadcasts are rewritten to read and produce
channels-last tensors, so no transpose is left between convolutions, normalizations and activations. Weight gradients
are transposed back to the layout of the parameter. All other users read the channels-first view.

Before:

    %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1, layout = "NC*",
        padding = array<i64: 0, 0>, stride = array<i64: 1, 1>}
       : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x6x6xf32>
    %1 = "gflow.exp"(%0) : (tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>

After:

    %0 = "gflow.transpose"(%x) {permutation = array<i64: 0, 2, 3, 1>} : …
    %1 = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : …
    %2 = "gflow.convolution"(%0, %1) {… layout = "N*C", …}
       : (tensor<2x8x8x3xf32>, tensor<4x3x3x3xf32>) -> tensor<2x6x6x4xf32>
    %3 = "gflow.exp"(%2) : (tensor<2x6x6x4xf32>) -> tensor<2x6x6x4xf32>
    %4 = "gflow.transpose"(%3) {permutation = array<i64: 0, 3, 1, 2>} : …
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.structure import BARRIER
from gflow.dialects.types import HALVES, TensorType

from ..base import NoOptions, Pass
from ..simplify.rewriter import Node, Rewriter
from ..simplify.rules import ELEMENTWISE, Rules, joined
from ..simplify.simplify import RULES as SIMPLIFY

#: ranks for which PyTorch has a channels-last memory format
_RANKS = (4, 5)
_MAX_DEPTH = 20
_MOVING = (*ELEMENTWISE, "slice", "pad", "concatenate", "reverse")

RULES = Rules()


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from channels first to channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The permutation from channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def permuted(items: Sequence[Any]) -> tuple[Any, ...]:
    """The items, one for each dimension, in channels-last order."""
    return tuple(items[d] for d in to_last(len(items)))


class LayoutRewriter(Rewriter):
    """Keeps the channels-last versions of channels-first values."""

    def __init__(self, function: func.FuncOp) -> None:
        super().__init__(function, _ALL)
        self._last: dict[ir.Value, ir.Value] = {}
        self._lazy: set[ir.Value] = set()
        self.forced = False
        self._transposed: dict[ir.Value, ir.Value] = {}
        #: broadcasts that are being converted to channels last: simplification would turn the transpose of one into
        #: that broadcast again
        self.under_way: set[tuple[ir.Value, tuple[int, ...]]] = set()

    def has_last(self, value: ir.Value) -> bool:
        """Whether `value` has a channels-last version."""
        return value in self._last or value in self._lazy

    def last(self, value: ir.Value) -> ir.Value:
        """The channels-last version of `value`: the known one, or a transpose."""
        found = self._last.get(value) or self._transposed.get(value)
        if found is None and self._can_follow(value, 0):
            node = self.node(value)
            assert node is not None
            self.forced = True
            view = RULES.of(node.name)[0](node, self)
            assert view is not None
            found = self._last[value] = self._last[view]
        if found is None:
            permutation = to_last(self.type(value).rank)
            found = self.build("transpose", [value], {"permutation": permutation})
            self._transposed[value] = found
        return found

    def _can_follow(self, value: ir.Value, depth: int) -> bool:
        """Whether the producer of `value` can run channels last without transposes of its operands.

        This includes gradients that begin as broadcasts and reach the first convolution later.
        """
        node = self.node(value)
        if node is None or node.name not in _MOVING or depth > _MAX_DEPTH:
            return False
        return all(
            self.has_last(x)
            or self.splat(x) is not None
            or self._is_expansion(x)
            or self._can_follow(x, depth + 1)
            for x in (node.operands[:1] if node.name == "pad" else node.operands)
        )

    def _is_expansion(self, value: ir.Value) -> bool:
        node = self.node(value, "broadcast")
        return node is not None and self.type(node.operands[0]).numel < node.type.numel

    def first(self, last: ir.Value) -> ir.Value:
        """The channels-first view of a channels-last value; the pair is stored."""
        permutation = to_first(self.type(last).rank)
        value = self.build("transpose", [last], {"permutation": permutation})
        self._last[value] = last
        return value

    def follow_results(self, op: ir.Operation) -> None:
        """Read the results of an ATen op channels last.

        PyTorch gives them the memory format of the operands.
        """
        if any(self.has_last(operand) for operand in op.operands):
            self._lazy.update(r for r in op.results if self.type(r).rank in _RANKS)

    def visit_other(self, op: ir.Operation) -> None:
        """Rewrite an op without a rule: operands are converted to the layout of PyTorch's sizes, results may
        follow."""
        if op.name == "gflow.aten":
            self.follow_results(op)
        elif op.name == "gflow.max_pool":
            found = pooled(op, self)
            for old, new in zip(op.results, found or ()):
                old.replace_all_uses_with(self.first(new))
        elif op.name == f"gflow.{BARRIER}":
            pairs = zip(op.operands, op.results)
            self._lazy.update(r for v, r in pairs if self.has_last(v))


def _last_of(b: Rewriter, *operands: ir.Value) -> list[ir.Value] | None:
    """All operands channels last, if one of them exists so already (or it must be)."""
    assert isinstance(b, LayoutRewriter)
    forced, b.forced = b.forced, False
    if forced:
        return [b.last(x) for x in operands]
    return [b.last(x) for x in operands] if any(map(b.has_last, operands)) else None


def _first(b: Rewriter, value: ir.Value) -> ir.Value:
    assert isinstance(b, LayoutRewriter)
    return b.first(value)


def _is_faster_last(ty: TensorType) -> bool:
    """Whether a convolution with this result runs channels last.

    One in a single dimension does only where gflow has kernels: ATen would copy its operands.
    """
    return ty.rank in _RANKS or (ty.rank == 3 and ty.dtype in ("f32", *HALVES))


@RULES.add("convolution", "convolution_input_grad", "convolution_weight_grad")
def convolution(n: Node, b: Rewriter) -> ir.Value | None:
    """A convolution over channels-last operands."""
    assert isinstance(b, LayoutRewriter)
    if n.attrs["layout"] != "NC*" or not _is_faster_last(n.type):
        return None
    attrs = {**n.attrs, "layout": "N*C"}
    if "shape" in attrs:
        attrs["shape"] = permuted(attrs["shape"])
    result = b.build(n.name, [b.last(x) for x in n.operands], attrs)
    if n.name == "convolution_weight_grad":
        return b.build("transpose", [result], {"permutation": to_first(n.type.rank)})
    return b.first(result)


@RULES.add(*ELEMENTWISE)
def elementwise(n: Node, b: Rewriter) -> ir.Value | None:
    """An elementwise op of which an operand is channels last."""
    operands = _last_of(b, *n.operands)
    return None if operands is None else _first(b, b.build(n.name, operands, n.attrs))


@RULES.add("broadcast")
def broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """A broadcast along dimensions of size 1, of a channels-last operand."""
    if n.attrs["dims"] != tuple(range(n.type.rank)):
        return None
    assert isinstance(b, LayoutRewriter)
    key = (n.operands[0], n.type.shape)
    operands = None if key in b.under_way else _last_of(b, *n.operands)
    if operands is None:
        return None
    attrs = {"shape": permuted(n.type.shape), "dims": n.attrs["dims"]}
    b.under_way.add(key)
    try:
        return _first(b, b.build("broadcast", operands, attrs))
    finally:
        b.under_way.remove(key)


@RULES.add("slice", "pad")
def by_dimension(n: Node, b: Rewriter) -> ir.Value | None:
    """A slice or pad of a channels-last operand."""
    operands = _last_of(b, n.operands[0])
    if operands is None:
        return None
    attrs = {name: permuted(value) for name, value in n.attrs.items()}
    return _first(b, b.build(n.name, [*operands, *n.operands[1:]], attrs))


@RULES.add("concatenate")
def concatenate(n: Node, b: Rewriter) -> ir.Value | None:
    """A concatenation of which an operand is channels last."""
    operands = _last_of(b, *n.operands)
    if operands is None:
        return None
    dim = to_last(n.type.rank).index(n.attrs["dim"])
    return _first(b, b.build("concatenate", operands, {"dim": dim}))


@RULES.add("reverse")
def reverse(n: Node, b: Rewriter) -> ir.Value | None:
    """A reversal of a channels-last operand."""
    operands = _last_of(b, *n.operands)
    if operands is None:
        return None
    place = to_last(n.type.rank)
    dims = tuple(sorted(place.index(d) for d in n.attrs["dims"]))
    return _first(b, b.build("reverse", operands, {"dims": dims}))


@RULES.add("reduce")
def reduce(n: Node, b: Rewriter) -> ir.Value | None:
    """A reduction of a channels-last operand; its result keeps the order it had."""
    operands = _last_of(b, *n.operands)
    if operands is None:
        return None
    order = to_last(b.type(n.operands[0]).rank)
    dims = n.attrs["dims"]
    attrs = {**n.attrs, "dims": tuple(sorted(order.index(d) for d in dims))}
    result = b.build("reduce", operands, attrs)
    kept = [d for d in order if d not in dims]
    permutation = tuple(kept.index(d) for d in sorted(kept))
    return b.build("transpose", [result], {"permutation": permutation})


def pooled(op: ir.Operation, b: LayoutRewriter) -> list[ir.Value] | None:
    """The channels-last results of pooling of which an operand is channels last."""
    attrs = b.read_attributes(op, OPS[op.name.removeprefix("gflow.")])
    if attrs["layout"] != "NC*" or not any(map(b.has_last, op.operands)):
        return None
    attrs["layout"] = "N*C"
    if "shape" in attrs:
        attrs["shape"] = permuted(attrs["shape"])
    operands = [b.last(x) for x in op.operands]
    return b.build_all(op.name.removeprefix("gflow."), operands, attrs)


@RULES.add("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad")
def pooling(n: Node, b: Rewriter) -> ir.Value | None:
    """Pooling of a channels-last operand."""
    assert isinstance(b, LayoutRewriter)
    found = pooled(n.op, b)
    return b.first(found[0]) if found else None


@RULES.add("aten")
def aten(n: Node, b: Rewriter) -> ir.Value | None:
    """An op of PyTorch: it reads the channels-first view, and its result is read channels last."""
    assert isinstance(b, LayoutRewriter)
    b.follow_results(n.op)
    return None


_ALL = joined(RULES, SIMPLIFY)


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Assign layouts in one function, in place."""
    ops = function.regions[0].blocks[0].operations
    if any(op.operation.name.startswith("gflow.convolution") for op in ops):
        LayoutRewriter(function).sweep()


PASS = Pass("gflow-assign-layout", run, doc=__doc__)

"""Kernels as `gflow.fused` ops: the contraction inside, and other results.

A kernel of kind "contraction" has one, its root:

    %r = "gflow.fused"(%a, %b, %c) ({
    ^bb0(%x, %y, %z):
      %0 = "gflow.matmul"(%x, %y)        the root; its operands are block arguments
      %1 = "gflow.add"(%0, %z)           the epilogue
      "gflow.yield"(%1)
    }) {kind = "contraction"}

`narrow_fused` removes results. Before, where nobody reads `%d`:

    %h, %d = "gflow.fused"(%x, %y) ({
    ^bb0(%a: tensor<64xf32>, %b: tensor<64xf32>):
      %0 = "gflow.tanh"(%a) : (tensor<64xf32>) -> tensor<64xf32>
      %1 = "gflow.mul"(%0, %b) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
      "gflow.yield"(%0, %1) : (tensor<64xf32>, tensor<64xf32>) -> ()
    }) {kind = "pointwise"} : (tensor<64xf32>, tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>)

After:

    %h = "gflow.fused"(%x) ({
    ^bb0(%a: tensor<64xf32>):
      %0 = "gflow.tanh"(%a) : (tensor<64xf32>) -> tensor<64xf32>
      "gflow.yield"(%0) : (tensor<64xf32>) -> ()
    }) {kind = "pointwise"} : (tensor<64xf32>) -> tensor<64xf32>
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import CONTRACTIONS, OPS

from .ssa import clone_region, fused_kind


def root_of(fused: ir.Operation) -> ir.Operation | None:
    """The contraction in a `gflow.fused` op; None without one."""
    if fused_kind(fused) not in ("", "contraction"):
        return None
    for op in fused.regions[0].blocks[0].operations:
        if op.operation.name.removeprefix("gflow.") in CONTRACTIONS:
            return op.operation
    return None


def root_operands(root: ir.Operation) -> list[int]:
    """For each operand of a root, the number of the fused op's operand."""
    return [ir.BlockArgument(v).arg_number for v in root.operands]


def operand_sum(fused: ir.Operation) -> tuple[ir.Operation, int] | None:
    """The sum of an operand of a kernel's matrix product over the dimension that the product contracts; None without.

    %0 = "gflow.matmul"(%x, %y) : (tensor<64x512xbf16>, tensor<512x32xbf16>) -> tensor<64x32xbf16>
    %1 = "gflow.convert"(%x) {dtype = "f32"} : …
    %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x512xf32>) -> tensor<64xf32>

    Returns the reduction and the number of the product's operand. A reduction is none of these if some result depends
    on it and on the product: then it is part of the epilogue.
    """
    root = root_of(fused)
    if root is None or root.name != "gflow.matmul" or builder.type_of(root.results[0]).rank != 2:
        return None
    inner = [view.operation for view in fused.regions[0].blocks[0].operations][:-1]
    for op in inner:
        number = _summed_operand(op, root)
        if number is not None and not _meet(inner, op.results[0], root.results[0]):
            return op, number
    return None


def _summed_operand(op: ir.Operation, root: ir.Operation) -> int | None:
    """The number of the product's operand that `op` sums over the contracted dimension; None for another op."""
    if op.name != "gflow.reduce":
        return None
    attrs = read(OPS["reduce"], op.attributes)
    value = op.operands[0]
    if not isinstance(value.owner, ir.Block) and value.owner.operation.name == "gflow.convert":
        value = value.owner.operation.operands[0]
    for number, contracted in enumerate((1, 0)):
        if value == root.operands[number] and tuple(attrs["dims"]) == (contracted,):
            return number if attrs["kind"] == "sum" else None
    return None


def _meet(inner: Sequence[ir.Operation], x: ir.Value, y: ir.Value) -> bool:
    """Whether an op depends on both values. inner: the ops of their block, in order."""
    of_x, of_y = {x}, {y}
    for op in inner:
        for found in (of_x, of_y):
            if any(v in found for v in op.operands):
                found |= {*op.results}
    return not of_x.isdisjoint(of_y)


def is_read(value: ir.Value) -> bool:
    """Whether a value has a use."""
    return next(iter(value.uses), None) is not None


def inline_fused(op: ir.Operation) -> list[ir.Operation]:
    """Replace a kernel by the ops in its region. Returns them, in order."""
    copies, values = clone_region(op)
    for result, value in zip(op.results, values):
        result.replace_all_uses_with(value)
    op.erase()
    return copies


def narrow_fused(op: ir.Operation) -> None:
    """Remove the results of a `gflow.fused` op that are not read, and what only they depend on.

    A kernel that neither reduces nor contracts any more becomes one of kind "pointwise". One of which a contraction
    without an epilogue is left is replaced by the contraction.
    """
    *inner, last = [o.operation for o in op.regions[0].blocks[0].operations]
    kept = [i for i, r in enumerate(op.results) if is_read(r)]
    _yield(last, [last.operands[i] for i in kept])
    for o in reversed(inner):
        if not any(is_read(r) for r in o.results):
            o.erase()
    read = [i for i, a in enumerate(op.regions[0].blocks[0].arguments) if is_read(a)]
    new = op
    if len(kept) < len(op.results) or len(read) < len(op.operands):
        new = _rebuild(op, read, [builder.type_of(op.results[i]) for i in kept])
        for i, result in zip(kept, new.results):
            op.results[i].replace_all_uses_with(result)
        op.erase()
    if is_bare(_names(new)):
        inline_fused(new)


def is_bare(names: set[str]) -> bool:
    """Whether ops of these names are a contraction without an epilogue."""
    return bool(names & CONTRACTIONS) and names <= {*CONTRACTIONS, "reshape", "yield"}


def widen_fused(op: ir.Operation, values: Sequence[ir.Value]) -> ir.Operation:
    """Add values of its region to the results of a `gflow.fused` op. Results stay in order of their types.

    Returns:
        The op that replaces `op`.
    """
    last = list(op.regions[0].blocks[0].operations)[-1].operation
    results = [*last.operands, *values]
    order = sorted(range(len(results)), key=lambda n: (str(results[n].type), n))
    _yield(last, [results[n] for n in order])
    new = _rebuild(op, range(len(op.operands)), [builder.type_of(results[n]) for n in order])
    for i, old in enumerate(op.results):
        old.replace_all_uses_with(new.results[order.index(i)])
    op.erase()
    return new


def _names(op: ir.Operation) -> set[str]:
    """The names of the ops in a kernel, without the dialect's prefix."""
    return {o.operation.name.removeprefix("gflow.") for o in op.regions[0].blocks[0].operations}


def _yield(last: ir.Operation, values: Sequence[ir.Value]) -> None:
    with ir.InsertionPoint(last), last.location:
        builder.build_op("yield", values, result_types=[])
    last.erase()


def _rebuild(
    op: ir.Operation, read: Sequence[int], types: Sequence[builder.TensorType]
) -> ir.Operation:
    """A kernel with the region and attributes of `op` and other results; of its operands, those that are `read`."""
    block = op.regions[0].blocks[0]
    operands = [op.operands[i] for i in read]
    for i in reversed(range(len(block.arguments))):
        if i not in read:
            block.erase_argument(i)
    kept = {n: op.attributes[n] for n in op.attributes if not n.endswith("SegmentSizes")}
    names = _names(op)
    if fused_kind(op) not in ("", "pointwise") and not names & {*CONTRACTIONS, "reduce"}:
        kept["kind"] = ir.StringAttr.get("pointwise")
    with ir.InsertionPoint(op), op.location:
        new = builder.build_op("fused", operands, result_types=types)
    for name, value in kept.items():
        new.attributes[name] = value
    block.append_to(new.regions[0])
    return new

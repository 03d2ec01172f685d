"""Run contractions apart from their epilogues, where that was measured to be faster.

Before, a product with a bias and a tanh, whose own result is stored as well:

    %0:2 = "gflow.fused"(%b, %x, %w) ({
    ^bb0(%i: tensor<512xbf16>, %j: tensor<64x256xbf16>, %k: tensor<256x512xbf16>):
      %1 = "gflow.matmul"(%j, %k) : (tensor<64x256xbf16>, tensor<256x512xbf16>) -> tensor<64x512xbf16>
      %2 = "gflow.broadcast"(%i) {dims = array<i64: 1>, shape = array<i64: 64, 512>} : …
      %3 = "gflow.add"(%1, %2) : …
      %4 = "gflow.tanh"(%3) : …
      "gflow.yield"(%1, %4) …
    }) {kind = "contraction", …

After `gflow-unfuse{groups=2424b55ac9a0}`:

    %0 = "gflow.matmul"(%x, %w) {gflow.group = "2424b55ac9a0"} : …
    %1 = "gflow.fused"(%b, %0) ({
    ^bb0(%i: tensor<512xbf16>, %j: tensor<64x512xbf16>):
      %2 = "gflow.broadcast"(%i) {dims = array<i64: 1>, shape = array<i64: 64, 512>} : …
      %3 = "gflow.add"(%j, %2) : …
      %4 = "gflow.tanh"(%3) : …
      "gflow.yield"(%4) …
    }) {gflow.group = "2424b55ac9a0", kind = "pointwise", …

An epilogue saves a store and a load of the contraction's result. It also keeps the contraction from a library, whose
product may be faster by more than that, and takes registers from its tile. Only a measurement decides:
`driver/group_races.py` compares both where races run.

Every kernel that can be split gets `gflow.group`, a digest of its region and of the order in which the operands of its
contraction lie in memory. So the kernels of equal layers are one group, and the same pipeline finds it again. Listed
groups are split: into the contraction, which has no epilogue then, and one kernel of the rest, which reads the
contraction's result as it is stored, rounded to its type.

A kernel can be split if its epilogue is elementwise, or reduces whole columns (`gflow-join-columns`). Sums of the
contraction's operand, runs of a softmax and partial sums exist only in a contraction's kernel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import field

from gflow.compiler.ir.fused import operand_sum, root_of, root_operands
from gflow.compiler.ir.ssa import Body, Op, clone_into, fused_kind, read_body
from gflow.compiler.ir.views import Layout, layouts
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.marks import GROUP
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import type_of

from ..base import Pass
from .region import Region, ops_inside

#: what an epilogue may have besides elementwise ops and reductions
_FREE = ("broadcast", "constant", "iota", "random", "reshape")
#: the number of an op's random numbers, which differs between equal layers
_STREAM = re.compile(r"stream = \d+")


@record
class UnfuseOptions:
    """Options of gflow-unfuse."""

    groups: tuple[str, ...] = field(
        default=(), metadata={"doc": "the groups that are split, as `gflow.group` names them"}
    )


def run(function: func.FuncOp, options: UnfuseOptions) -> None:
    """Split the listed groups of the function in place, and mark the others."""
    body = read_body(function)
    at = layouts(function, body)
    rests: dict[str, str] = {}
    for o in body.ops:
        if fused_kind(o.op) != "contraction":
            continue
        name = _name(o, body, at)
        if name not in rests:
            rests[name] = kind_of_rest(o.op)
        if not rests[name]:
            continue
        parts = split(o.op) if name in options.groups else [o.op]
        for part in parts:
            with function.context:
                part.attributes[GROUP] = ir.StringAttr.get(name)


def _name(o: Op, body: Body, at: Sequence[Layout]) -> str:
    """The name of a kernel's group."""
    text = _STREAM.sub("", o.op.get_asm(assume_verified=True, use_local_scope=True))
    root = root_of(o.op)
    assert root is not None
    orders = [_order(at[o.operands[n]].strides) for n in root_operands(root)]
    return hashlib.sha256(f"{text} {orders}".encode()).hexdigest()[:12]


def _order(strides: Sequence[int]) -> list[int]:
    """The dimensions of an operand from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def kind_of_rest(fused: ir.Operation) -> str:
    """The kind of the kernel that computes the epilogue of a contraction's kernel apart; "" where none can."""
    if operand_sum(fused) is not None:
        return ""
    apart, kind = _apart(fused), "pointwise"
    *inner, end = ops_inside(fused)
    for op in inner:
        name = op.name.removeprefix("gflow.")
        if op in apart:
            continue
        if name == "reduce":
            attrs = read(OPS[name], op.attributes)
            columns = tuple(range(type_of(op.operands[0]).rank - 1))
            if attrs["kind"].startswith("arg") or tuple(attrs["dims"]) != columns:
                return ""
            kind = "column"
        elif name not in _FREE and OPS[name].category != "elementwise":
            return ""
    stored = [v for v in end.operands if not isinstance(v.owner, ir.Block)]
    others = [v for v in stored if v.owner.operation not in apart]
    return kind if others and len(stored) == len(end.operands) else ""


def _apart(fused: ir.Operation) -> list[ir.Operation]:
    """The contraction, and the reshapes and slices of its result, which are views outside of a kernel."""
    root = root_of(fused)
    assert root is not None
    views = [op for op in ops_inside(fused) if op.name in ("gflow.reshape", "gflow.slice")]
    return [root, *(op for op in views if op.operands[0] == root.results[0])]


def split(fused: ir.Operation) -> list[ir.Operation]:
    """Split a contraction's kernel, whose `kind_of_rest` isn't empty.

    Returns:
        The contraction, and the kernel of the rest.
    """
    kind, apart = kind_of_rest(fused), _apart(fused)
    outside = dict(zip(fused.regions[0].blocks[0].arguments, fused.operands))
    with ir.InsertionPoint(fused):
        root, *_ = [clone_into(op, outside) for op in apart]
    *inner, end = ops_inside(fused)
    rest = [op for op in inner if op not in apart]
    made = {r for op in rest for r in op.results}
    read_by_rest = [v for op in rest for v in op.operands if v not in made]
    stored = list(dict.fromkeys(v for v in end.operands if v in made))
    with ir.InsertionPoint(fused), fused.location:
        region = Region(kind, [outside[v] for v in read_by_rest], [type_of(v) for v in stored])
        known = {v: region.inside[outside[v]] for v in read_by_rest}
        with ir.InsertionPoint(region.block):
            for op in rest:
                clone_into(op, known)
            builder.build_op("yield", [known[v] for v in stored], {}, [])
    outside.update(zip(stored, region.op.results))
    for result, v in zip(fused.results, end.operands):
        result.replace_all_uses_with(outside[v])
    fused.erase()
    return [root, region.op]


PASS = Pass("gflow-unfuse", run, UnfuseOptions, __doc__ or "")

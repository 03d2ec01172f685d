"""Sum an operand of a matrix product in the product.

Before, the gradients of a layer's weight and bias, which both read the gradient %g of its result:

    %0 = "gflow.transpose"(%g) {permutation = array<i64: 1, 0>} : (tensor<8192x2304xbf16>) -> tensor<2304x8192xbf16>
    %1 = "gflow.matmul"(%0, %x) : (tensor<2304x8192xbf16>, tensor<8192x768xbf16>) -> tensor<2304x768xbf16>
    %2 = "gflow.fused"(%g) ({
    ^bb0(%i: tensor<8192x2304xbf16>):
      %3 = "gflow.convert"(%i) {dtype = "f32"} : (tensor<8192x2304xbf16>) -> tensor<8192x2304xf32>
      %4 = "gflow.reduce"(%3) {dims = array<i64: 0>, kind = "sum"} : (tensor<8192x2304xf32>) -> tensor<2304xf32>
      %5 = "gflow.convert"(%4) {dtype = "bf16"} : (tensor<2304xf32>) -> tensor<2304xbf16>
      "gflow.yield"(%5) …
    }) {kind = "column", …

After `gflow-join-operand-sums{target=cuda:90}`:

    %0 = "gflow.transpose"(%g) …
    %1:2 = "gflow.fused"(%0, %x) ({
    ^bb0(%i: tensor<2304x8192xbf16>, %j: tensor<8192x768xbf16>):
      %2 = "gflow.matmul"(%i, %j) : …
      %3 = "gflow.convert"(%i) {dtype = "f32"} : …
      %4 = "gflow.reduce"(%3) {dims = array<i64: 1>, kind = "sum"} : (tensor<2304x8192xf32>) -> tensor<2304xf32>
      %5 = "gflow.convert"(%4) {dtype = "bf16"} : …
      "gflow.yield"(%5, %2) …
    }) {kind = "contraction", …

The product reads all of %g in its loop over K, so the sums cost no memory traffic, and no launch. Updates of the bias
that follow the sums come along. The product may have an epilogue of its own.

A column kernel joins if it sums one value in half precision over all dimensions but the last, and a product reads the
same memory with these dimensions as K. The loop that sums is not a persistent one; the pass joins two kernels only if
the model of tiles predicts that the product takes less additional time than it takes to read the value once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from gflow.compiler.ir.ssa import Body, Op, clone_into, fused_kind, read_body
from gflow.compiler.ir.views import Layout, layouts
from gflow.compiler.kernel.dimensions import merged
from gflow.compiler.kernel.selection.gpu.chooser import tf32_allowed
from gflow.compiler.kernel.selection.gpu.product.contraction import (
    Contraction,
    contraction_of,
    seconds_alone,
)
from gflow.compiler.kernel.selection.gpu.product.matmul import kind_of_matmul, product_of_matmul
from gflow.compiler.targets import Target
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import HALVES, type_of

from ..base import Pass, gpu_of
from .region import JoinOptions, Region, cloned, fit_one_kernel, ops_inside

#: where a matrix lies: base value, offset, and (size, stride) of its columns and of its rows
_Matrix = tuple[int, int, tuple[int, int], tuple[int, int]]


@dataclass
class _Sums:
    """A column kernel that sums one value.

    Args:
        value: the value.
        columns: the size of its last dimension.
        sum: the reduction.
        after: the ops on the sums.
    """

    o: Op
    value: int
    columns: int
    sum: ir.Operation
    after: list[ir.Operation]


def run(function: func.FuncOp, options: JoinOptions) -> None:
    """Join column kernels of the function to products that read what they sum, in place.

    Raises:
        PassError: the target is unknown, or no GPU.
    """
    target = gpu_of(options.target, "products sum operands")
    body = read_body(function)
    found = [s for o in body.ops if (s := _sums(o, body)) is not None]
    if not found:
        return
    joining = _Joining(function, body, target, options)
    for s in found:
        joining.join(s)
    for number in sorted(joining.joined, reverse=True):
        body.ops[number].op.erase()


def _sums(o: Op, body: Body) -> _Sums | None:
    """The description of a column kernel of which all results follow the sums of one value; None for another op."""
    if fused_kind(o.op) != "column":
        return None
    *inner, end = ops_inside(o.op)
    reductions = [op for op in inner if op.name == "gflow.reduce"]
    if len(reductions) != 1:
        return None
    (total,) = reductions
    attrs, ty = read(OPS["reduce"], total.attributes), type_of(total.operands[0])
    wanted = tuple(range(ty.rank - 1))
    if (
        attrs["kind"] != "sum"
        or tuple(attrs["dims"]) != wanted
        or type_of(total.results[0]).dtype != "f32"
    ):
        return None
    convert = total.operands[0].owner
    if isinstance(convert, ir.Block) or convert.operation.name != "gflow.convert":
        return None
    argument = convert.operation.operands[0]
    if not isinstance(argument.owner, ir.Block):
        return None
    before = {convert.operation, total}
    after = [op for op in inner if op not in before]
    whole = prod(ty.shape)
    used = {v for op in after for v in op.operands} | {*end.operands}
    if argument in used or convert.operation.results[0] in used:
        return None
    if any(type_of(v).numel == whole > ty.shape[-1] for v in used):
        return None
    value = o.operands[ir.BlockArgument(argument).arg_number]
    return _Sums(o, value, ty.shape[-1], total, after)


class _Joining:
    """One run of the pass.

    Args:
        at: the layouts of values, before any kernel is joined.
        position: for each op, where it is in the function, also after it was joined.
        joined: the ops that are joined. They are erased in the end, as layouts are asked of them.
        near: the products, each with the number of an operand, by where the operand lies.
    """

    def __init__(
        self, function: func.FuncOp, body: Body, target: Target, options: JoinOptions
    ) -> None:
        self.body, self.target, self.options = body, target, options
        self.at: Sequence[Layout] = layouts(function, body)
        self.tf32 = tf32_allowed(function, "matmul", target)
        self.position = list(range(len(body.ops)))
        self.joined: set[int] = set()
        self.near: dict[_Matrix, list[tuple[Op, Contraction, int]]] = {}
        for o in body.ops:
            c = self.product(o)
            for number in () if c is None else (0, 1):
                assert c is not None
                matrix = self.operand(c, number)
                self.near.setdefault(matrix, []).append((o, c, number))

    def product(self, o: Op) -> Contraction | None:
        """The product of an op that may sum an operand; None for another op."""
        c = contraction_of(o, self.body, self.at)
        if c is None or c.name != "matmul" or c.result.rank != 2 or kind_of_matmul(c) != "product":
            return None
        p = product_of_matmul(c, self.tf32, self.target)
        halves = c.types[0].dtype in HALVES and c.types[1].dtype == c.types[0].dtype
        reduces = c.sums is not None or c.following.whole() > 1
        return c if halves and p.problem.kind == "cores" and not reduces else None

    def operand(self, c: Contraction, number: int) -> _Matrix:
        """Where an operand lies, with K as the rows."""
        layout, ty, strides = self.at[c.operands[number]], c.types[number], c.strides[number]
        pairs = [*zip(ty.shape, strides)]
        columns, rows = pairs if number == 0 else pairs[::-1]
        return layout.base, layout.offset, columns, rows

    def matrix(self, value: int) -> _Matrix | None:
        """Where a value lies, as a matrix whose columns are its last dimension; None if it is none."""
        layout, shape = self.at[value], self.body.types[value].shape
        sizes, (strides,) = merged(shape[:-1], (layout.strides[:-1],))
        if len(sizes) != 1:
            return None
        return layout.base, layout.offset, (shape[-1], layout.strides[-1]), (sizes[0], strides[0])

    def join(self, s: _Sums) -> None:
        """Join a column kernel to one of the products that read what it sums, if that is possible and faster."""
        matrix = self.matrix(s.value)
        for p, c, number in self.near.get(matrix, ()) if matrix is not None else ():
            if p.index in self.joined or not self.fits(p, s.o):
                continue
            at = self.place(p, s.o)
            if at is not None and self.is_faster(c, number, s):
                _build(self.body, p, number, s, self.body.ops[at].op)
                self.joined |= {p.index, s.o.index}
                self.position[p.index] = self.position[s.o.index] = at
                return

    def fits(self, p: Op, o: Op) -> bool:
        """Whether one kernel may have the operands and results of both."""
        operands, results = (*p.op.operands, *o.op.operands), (*p.op.results, *o.op.results)
        return fit_one_kernel(operands, results, self.options)

    def place(self, p: Op, o: Op) -> int | None:
        """The op, `p` or `o`, in whose place both can run as one; None: another op is between them."""
        first, last = sorted((p, o), key=lambda each: self.position[each.index])
        if self._precede(last, first):
            return first.index
        users = {u for r in first.results for u in self.body.users[r]}
        after = self.position[last.index]
        return last.index if all(self.position[u] > after for u in users) else None

    def _precede(self, o: Op, first: Op) -> bool:
        """Whether all operands of `o` are there before `first`."""
        made = {self.body.producer[v] for v in o.operands} - {-1}
        return all(self.position[n] < self.position[first.index] for n in made)

    def is_faster(self, c: Contraction, number: int, s: _Sums) -> bool:
        """Whether the model predicts that the product's additional time is less than that of another kernel."""
        device = self.target.device
        p = product_of_matmul(c, self.tf32, self.target)
        given = c.following, c.result, c.types[0].dtype, self.target
        alone = seconds_alone(p.posed(self.target), *given)
        summing = replace(p, summed="b" if number else "a")
        together = seconds_alone(summing.posed(self.target), *given)
        read_again = self.body.types[s.value].nbytes / device.bandwidth
        return together < alone + read_again + device.launch


def _build(body: Body, p: Op, number: int, s: _Sums, before: ir.Operation) -> None:
    """Build one kernel of a product and the sums of its operand `number`, before one of them. Nothing reads their own
    results then."""
    outputs = sorted([*p.op.results, *s.o.op.results], key=lambda v: str(v.type))
    summed = s.o.op.operands[s.o.operands.index(s.value)]
    operands = [*p.op.operands, *(v for v in s.o.op.operands if v != summed)]
    with ir.InsertionPoint(before), ir.Location.fused([p.op.location, s.o.op.location]):
        region = Region("contraction", operands, [type_of(v) for v in outputs])
        with ir.InsertionPoint(region.block):
            made = cloned(region, p.op) | _summed(region, s, number)
            builder.build_op("yield", [made[v] for v in outputs], {}, [])
    for v, new in zip(outputs, region.op.results):
        v.replace_all_uses_with(new)


def _summed(region: Region, s: _Sums, number: int) -> dict[ir.Value, ir.Value]:
    """Sum an operand of the region's product, and copy what follows. Returns what the kernel's results are there."""
    inner = [view.operation for view in region.block.operations]
    (root,) = (op for op in inner if op.name == "gflow.matmul")
    wide = builder.build("convert", [root.operands[number]], {"dtype": "f32"})
    known = region.enter(s.o.op)
    attrs = {**read(OPS["reduce"], s.sum.attributes), "dims": (1 - number,)}
    known[s.sum.results[0]] = builder.build("reduce", [wide], attrs)
    for op in s.after:
        clone_into(op, known)
    end = ops_inside(s.o.op)[-1]
    return {v: known[y] for v, y in zip(s.o.op.results, end.operands)}


PASS = Pass("gflow-join-operand-sums", run, JoinOptions, __doc__ or "")

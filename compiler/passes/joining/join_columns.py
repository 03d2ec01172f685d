"""Reduce columns in the product, or the depthwise convolution, that computes them.

Before, a convolution as a product, and the sums of its channels over 64 positions, by which a second kernel continues:

    %0 = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
    %1 = "gflow.fused"(%0) ({
    ^bb0(%i: tensor<64x96xf32>):
      %2 = "gflow.reduce"(%i) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
      %3 = "gflow.broadcast"(%2) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : …
      %4 = "gflow.div"(%i, %3) : …
      "gflow.yield"(%4) …
    }) {kind = "column", …

After `gflow-join-columns{target=cuda:90}`:

    %0 = "gflow.fused"(%x, %w) ({
    ^bb0(%i: tensor<64x32xf32>, %j: tensor<32x96xf32>):
      %1 = "gflow.matmul"(%i, %j) : …
      %2 = "gflow.reduce"(%1) {dims = array<i64: 0>, kind = "sum"} : …
      %3 = "gflow.broadcast"(%2) …
      %4 = "gflow.div"(%1, %3) : …
      "gflow.yield"(%4) …
    }) {kind = "contraction", …

A tile of the product then has all rows of its columns, so a program knows what it reduces: batch norm after a
convolution over small images, and its backward after the gradient of a convolution's input, are one launch with the
convolution. With split-K, the launch that adds up the parts reduces.

Such tiles are tall and narrow: they are few, and read the product's first operand often. The pass joins two kernels
only if the model of tiles predicts that both together take less time than one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Body, Op, clone_into, fused_kind, read_body
from gflow.compiler.ir.views import Layout, layouts
from gflow.compiler.kernel.description import Access, Kernel, describe
from gflow.compiler.kernel.selection.gpu.chooser import tf32_allowed
from gflow.compiler.kernel.selection.gpu.product.contraction import (
    Contraction,
    contraction_of,
    seconds_alone,
    with_following,
)
from gflow.compiler.kernel.selection.gpu.product.convolution import (
    Convolution,
    convolution_of,
    depthwise_configs,
    direct_product,
    kind_of_convolution,
    problem_of,
)
from gflow.compiler.kernel.selection.gpu.product.epilogue import Following
from gflow.compiler.kernel.selection.gpu.product.matmul import kind_of_matmul, product_of_matmul
from gflow.compiler.kernel.selection.gpu.product.tiles import Problem, fastest_tile, holds
from gflow.compiler.kernel.selection.gpu.region.launches import ways_of_kernel
from gflow.compiler.kernel.sizes import cdiv, power_of_two
from gflow.compiler.targets import Device, Target
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, row_major_strides, type_of

from ..base import Pass, gpu_of
from .region import JoinOptions, Region, cloned, fit_one_kernel


def run(function: func.FuncOp, options: JoinOptions) -> None:
    """Join column kernels of the function to the contractions that they read, in place.

    Raises:
        PassError: the target is unknown, or no GPU.
    """
    target = gpu_of(options.target, "products reduce columns")
    joining = _Joining(function, read_body(function), target, options)
    for o in joining.body.ops:
        if fused_kind(o.op) == "column":
            joining.join(o)
    for number in sorted(joining.joined, reverse=True):
        joining.body.ops[number].op.erase()


@dataclass
class _Made:
    """A contraction as the model of tiles sees it. problem: without its epilogue; None for depthwise convolutions."""

    c: Contraction
    problem: Problem | None
    depthwise: Convolution | None = None


class _Joining:
    """One run of the pass.

    Args:
        at: the layouts of values, before any kernel is joined.
        position: for each op, where it is in the function, also after it was joined.
        joined: the ops that are joined. They are erased in the end, as layouts are asked of them.
    """

    def __init__(
        self, function: func.FuncOp, body: Body, target: Target, options: JoinOptions
    ) -> None:
        self.body, self.target, self.options = body, target, options
        self.at: Sequence[Layout] = layouts(function, body)
        self.tf32 = {
            what: tf32_allowed(function, what, target) for what in ("matmul", "convolution")
        }
        self.position = list(range(len(body.ops)))
        self.joined: set[int] = set()
        self.known: dict[Hashable, bool] = {}

    def join(self, o: Op) -> None:
        """Join a column kernel to one of the contractions that it reads, if that is possible and faster."""
        body = self.body
        producers = {body.producer[v] for v in o.operands} - {-1} - self.joined
        k = self.description(o)
        if k is None:
            return
        for number in sorted(producers, reverse=True):
            p = body.ops[number]
            made = self.made(p)
            rows = self.rows(p, o)
            at = self.place(p, o, rows)
            if made is None or at is None or not self.fits(p, o, rows, k):
                continue
            if self.is_faster(made, k, p, o):
                _build(body, p, o, rows, body.ops[at].op)
                self.joined |= {p.index, o.index, *(row.index for row in rows)}
                self.position[p.index] = self.position[o.index] = at
                return

    def description(self, o: Op) -> Kernel | None:
        """A column kernel that reduces all dimensions but the last, of a length that a tile may have."""
        inputs, outputs = ([self.at[v].strides for v in vs] for vs in (o.operands, o.results))
        try:
            k = describe(o.op, inputs, outputs)
        except CannotLower:
            return None
        last = len(k.sizes) - 1
        whole = k.reduced == frozenset(range(last)) and last > 0
        rows = prod(k.sizes[:-1])
        reduces = any(n.op == "reduce" for n in k.nodes)
        return k if whole and reduces and 1 < rows <= self.target.device.column else None

    def rows(self, p: Op, o: Op) -> list[Op]:
        """Slices of one position of a contraction that only `o` reads, as the middle of shifted sums.

        Those of a value after an epilogue stay apart: a kernel that recomputes it alone could not read a row of it.
        """
        if p.name == "fused":
            return []
        made = {self.body.producer[v] for v in o.operands}
        found = []
        for n in sorted({u for r in p.results for u in self.body.users[r]} & made - self.joined):
            row = self.body.ops[n]
            (*_, last) = shape = self.body.types[row.operands[0]].shape
            only = all(u == o.index for u in self.body.users[row.results[0]])
            own = row.results[0] not in self.body.returned
            wanted = (*(1 for _ in shape[1:]), last)
            if (
                row.name == "slice"
                and only
                and own
                and self.body.types[row.results[0]].shape == wanted
            ):
                found.append(row)
        return found

    def place(self, p: Op, o: Op, rows: Sequence[Op]) -> int | None:
        """The op, `p` or `o`, in whose place both can run as one; None: another op is between them.

        rows: the slices that are computed with them.
        """
        first, last = self.position[p.index], self.position[o.index]
        within = {p.index, *(row.index for row in rows)}
        given = {self.body.producer[v] for v in o.operands} - within
        if all(n < 0 or self.position[n] < first for n in given):
            return p.index
        users = {u for r in p.results for u in self.body.users[r]} - {o.index} - within
        return o.index if all(self.position[u] > last for u in users) else None

    def fits(self, p: Op, o: Op, rows: Sequence[Op], k: Kernel) -> bool:
        """Whether the kernel reads the results of `p` at the positions that it computes; and limits of operands."""
        dense = row_major_strides(k.sizes)
        size = prod(k.sizes)
        read = [n for n, v in enumerate(o.operands) if v in p.results]
        if any(self.body.types[o.operands[n]].numel != size for n in read):
            return False
        if any((a.strides, a.offset) != (dense, 0) for a in k.loads if a.operand in read):
            return False
        results = (*p.op.results, *o.op.results)
        return fit_one_kernel(_operands(p, o, rows), results, self.options)

    def made(self, p: Op) -> _Made | None:
        """The contraction of an op whose tile can have whole columns; None for another op."""
        c = contraction_of(p, self.body, self.at)
        if c is None or c.following.whole() > 1 or c.following.run() > 1 or c.result.rank < 2:
            return None
        if c.sums is not None:
            return None
        if c.name == "matmul":
            if c.result.rank != 2 or kind_of_matmul(c) != "product":
                return None
            found = product_of_matmul(c, self.tf32["matmul"], self.target)
            return _summed(c, found.posed(self.target))
        if c.name not in ("convolution", "convolution_input_grad"):
            return None
        g = convolution_of(c)
        kind = kind_of_convolution(c, g)
        if not g.last or kind not in ("product", "depthwise"):
            return None
        if kind == "depthwise":
            return _Made(c, None, g)
        if g.groups > 1 or (c.name == "convolution_input_grad" and g.phases > 1):
            return None
        tf32 = self.tf32["convolution"]
        if g.direct:
            return _summed(c, direct_product(g, tf32, self.target).posed(self.target))
        return _summed(c, problem_of(g, tf32, self.target))

    def is_faster(self, made: _Made, k: Kernel, p: Op, o: Op) -> bool:
        """Whether the model predicts less time for one kernel than for two."""
        c, target, device = made.c, self.target, self.target.device
        key = (
            made.problem, made.depthwise, c.following.structure(), repr(k.sizes), _bytes(k, ()),
            tuple(t.dtype for t in c.types),
        )  # fmt: skip
        if key not in self.known:
            read = [n for n, v in enumerate(o.operands) if v in p.results]
            after = Following(
                [*c.following.kernels, _reading(k, read, c.following.operands)],
                c.following.operands,
            )
            fits = True
            if made.depthwise is not None:
                before, together = _of_depthwise(made.depthwise, k, read, device)
            else:
                assert made.problem is not None
                given = c.result, c.types[0].dtype, target
                before = seconds_alone(made.problem, c.following, *given)
                together = seconds_alone(made.problem, after, *given)
                model = with_following(made.problem, after, 1)
                tile = fastest_tile(model, 1, target)
                fits = holds(model, tile, target)
                together += _bytes(k, read) / _rate(cdiv(model.n, tile.n), device)
            self.known[key] = fits and together < before + _seconds_of_columns(k, device)
        return self.known[key]


def _summed(c: Contraction, problem: Problem) -> _Made | None:
    """A contraction whose product sums K by matrix instructions; None for others, whose tiles are small."""
    return None if problem.kind == "sums" or problem.batch > 1 else _Made(c, problem)


def _reading(k: Kernel, read: Sequence[int], result: int) -> Kernel:
    """The kernel as a part of an epilogue: the operands `read` are the contraction's result, with this number."""
    loads = [replace(a, operand=result if a.operand in read else ~a.operand) for a in k.loads]
    return replace(k, loads=loads)


def _bytes(k: Kernel, without: Sequence[int]) -> int:
    """The bytes that a kernel moves, without those of some operands."""

    def of(a: Access) -> int:
        size = prod(n for n, s in zip(k.sizes, a.strides) if s)
        return size * TensorType((), a.dtype).itemsize

    return sum(of(a) for a in k.loads if a.operand not in without) + sum(map(of, k.stores))


#: the rate of kernels whose loads go to registers, as a share of that of products: an estimate
_TO_REGISTERS = 0.5


def _rate(programs: int, device: Device) -> float:
    """The bytes in a second that so many programs move through the cache of the device."""
    return max(1, min(programs, device.multiprocessors)) * device.l2_bandwidth * _TO_REGISTERS


def _seconds_of_columns(k: Kernel, device: Device) -> float:
    """The predicted time of a column kernel's own launches."""
    operands = 1 + max((a.operand for a in k.loads), default=0)
    ways = ways_of_kernel(k, operands, 1 + max(a.operand for a in k.stores), device)
    programs = cdiv(k.sizes[-1], ways[0].block[-1]) * ways[0].pieces
    moved = _bytes(k, ()) / _rate(programs, device)
    return len(ways) * (device.launch + device.latency) + moved


def _of_depthwise(
    g: Convolution, k: Kernel, read: Sequence[int], device: Device
) -> tuple[float, float]:
    """The predicted time of a depthwise convolution alone, and with the kernel in it."""
    positions = prod(k.sizes[:-1])
    taps = g.taps * prod(k.sizes) * TensorType((), g.x.dtype).itemsize

    def programs(whole: int) -> int:
        block = depthwise_configs(g, whole)[0].constants
        return cdiv(positions, block["BLOCK_P"]) * cdiv(g.c, block["BLOCK_C"])

    once = device.launch + device.latency
    whole = _rate(programs(power_of_two(positions)), device)
    return once + taps / _rate(programs(1), device), once + (taps + _bytes(k, read)) / whole


def _operands(p: Op, o: Op, rows: Sequence[Op]) -> list[ir.Value]:
    """The operands of a contraction and a column kernel as one kernel."""
    own = [*p.op.results, *(row.op.results[0] for row in rows)]
    return [*p.op.operands, *(v for v in o.op.operands if v not in own)]


def _build(body: Body, p: Op, o: Op, rows: Sequence[Op], before: ir.Operation) -> None:
    """Build one kernel of a contraction and a column kernel, before one of them. Nothing reads their own results
    then."""
    own, others = [*p.op.results], {*body.returned}
    within = {o.index, *(row.index for row in rows)}
    others |= {r for r in p.results if not within.issuperset(body.users[r])}
    kept = [v for r, v in zip(p.results, own) if r in others]
    outputs = sorted([*kept, *o.op.results], key=lambda v: str(v.type))
    operands = _operands(p, o, rows)
    with ir.InsertionPoint(before), ir.Location.fused([p.op.location, o.op.location]):
        region = Region("contraction", operands, [type_of(v) for v in outputs])
        with ir.InsertionPoint(region.block):
            made = cloned(region, p.op)
            region.inside |= made
            for row in rows:
                clone_into(row.op, region.inside)
            made |= cloned(region, o.op)
            builder.build_op("yield", [made[v] for v in outputs], {}, [])
    for v, new in zip(outputs, region.op.results):
        v.replace_all_uses_with(new)


PASS = Pass("gflow-join-columns", run, JoinOptions, __doc__ or "")

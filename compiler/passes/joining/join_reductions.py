"""Compute column sums inside the row kernel that reads the same values.

Before `gflow-fuse`, which makes a row kernel and a column kernel of this, both reading `%g`:

    func.func @f(%x: tensor<4096x256xf32>, %g: tensor<4096x256xf32>, %b: tensor<256xf32>)
        -> (tensor<4096x256xf32>, tensor<256xf32>) {
      %m = "gflow.mul"(%x, %g) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
      %s = "gflow.reduce"(%m) {dims = array<i64: 1>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<4096xf32>
      %k = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 4096, 256>}
          : (tensor<4096xf32>) -> tensor<4096x256xf32>
      %d = "gflow.sub"(%g, %k) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
      %c = "gflow.reduce"(%g) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<256xf32>
      %u = "gflow.sub"(%b, %c) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
      return %d, %u : tensor<4096x256xf32>, tensor<256xf32>
    }

After `gflow-fuse,gflow-join-reductions{programs=528}` the first kernel also computes partial sums over blocks of rows,
and the second adds these up:

    func.func @f(%x: …) -> … {
      %0:2 = "gflow.fused"(%x, %g) ({
      ^bb0(%i: …, %j: …):
        %2 = "gflow.mul"(%i, %j) : …
        %3 = "gflow.reduce"(%2) {dims = array<i64: 1>, kind = "sum"} : …
        %4 = "gflow.broadcast"(%3) …
        %5 = "gflow.sub"(%j, %4) : …
        %6 = "gflow.partial_sums"(%j) {run = 8 : i64} : (tensor<4096x256xf32>) -> tensor<512x256xf32>
        "gflow.yield"(%5, %6) …
      }) {kind = "row", …
      %1 = "gflow.fused"(%b, %0#1) ({
      ^bb0(%i: tensor<256xf32>, %j: tensor<512x256xf32>):
        %2 = "gflow.reduce"(%j) {dims = array<i64: 0>, kind = "sum"} : …
        %3 = "gflow.sub"(%i, %2) : …
        "gflow.yield"(%3) …
      }) {kind = "column", …
      return %0#0, %1 : …
    }

The backward of a norm then reads its operands once. A column kernel joins a row kernel over the same index space if the
row kernel loads or computes all full-size operands of the column kernel; either may come first in the program. The ops
that follow the sums (updates of several parameters) are one kernel where no op in between needs their results. The pass
is for devices that run one program instance for each block of rows.

A column kernel that reads only the result of a matrix product after its epilogue (the gradient of a bias before an
activation) joins the product in the same way: each of the product's tiles computes the sums of 64 rows. This requires
that the product has enough tiles without split-K, and that no row kernel can sum the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gflow.compiler.ir.fused import root_of
from gflow.compiler.ir.ssa import Body, Op, clone_into, fused_kind, read_body
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, type_of

from ..base import Pass
from .region import Region, ops_inside


@record
class JoinOptions:
    """Options of gflow-join-reductions."""

    least_rows: int = field(default=2048, metadata={"doc": "the fewest rows of a kernel"})
    programs: int = field(default=264, metadata={"doc": "the most blocks of its rows"})
    shortest: int = field(default=128, metadata={"doc": "the fewest elements of a row"})
    longest: int = field(default=4096, metadata={"doc": "the most elements of a row"})
    max_inputs: int = field(default=40, metadata={"doc": "the most operands of one kernel"})


#: blocks of rows are multiples of this: the maximal number of rows that a program processes at once
_TILE = 8
#: the rows of a product's tile that one partial sum covers; the tile's height is a multiple of it
_PRODUCT_RUN = 64
#: a tile with which a product fills a device without split-K, and the number of programs of row kernels equivalent to
#: one tile
_PRODUCT_TILE, _PER_TILE = 128 * 128, 2
#: element types of products whose tiles may be that large
_PRODUCT_TYPES = ("f16", "bf16", "f32")


@dataclass
class _Columns:
    """A kernel with column sums.

    Args:
        wide, gives: operands and results over the whole index space.
        sums: the reductions.
        before: the ops that compute the summed values and the results over the whole index space.
        after: the ops on the sums.
    """

    o: Op
    space: tuple[int, ...]
    wide: set[int]
    gives: dict[int, ir.Value]
    sums: list[ir.Operation]
    before: list[ir.Operation]
    after: list[ir.Operation]

    @property
    def sums_to(self) -> list[int]:
        """The results that have the shape of the sums."""
        return [v for v in self.o.results if v not in self.gives]


class _Order:
    """The positions at which values are produced and first needed, while kernels are joined."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.made = list(body.producer)
        self.needs = [o.index for o in body.ops]

    def users(self, values: Iterable[int]) -> set[int]:
        return {self.needs[u] for v in values for u in self.body.users[v]}


def run(function: func.FuncOp, options: JoinOptions) -> None:
    """Join column sums of the function to row kernels, in place."""
    body = read_body(function)
    order = _Order(body)
    near: dict[
        int, list[tuple[Op, tuple[int, ...]]]
    ] = {}  # value → row kernels that read or compute it
    found: dict[int, list[_Columns]] = {}
    for o in body.ops:
        space = _space_of(o, "row")
        if _fits(space, options):
            for v in {*o.operands, *o.results}:
                near.setdefault(v, []).append((o, space))
        elif space := _product_space(o, options):
            for v in o.results:
                near.setdefault(v, []).append((o, space))
    for o in body.ops:
        c = _columns(o) if _fits(_space_of(o, "column"), options) else None
        if c is None:
            continue
        others = {
            r.index: r for v in (*c.wide, *c.gives) for r, s in near.get(v, ()) if s == c.space
        }
        candidates = [r for r in others.values() if _can_join(order, r, c)]
        if candidates:
            best = max(candidates, key=lambda r: (not _is_product(r), _shared(r, c), -r.index))
            found.setdefault(best.index, []).append(c)
    for index, columns in found.items():
        r = body.ops[index]
        still = [c for c in columns if _can_join(order, r, c)]
        _join(order, r, _within(r, still, options), options)


def _space_of(o: Op, kind: str) -> tuple[int, ...]:
    """The index space of a kernel all of whose reductions are of rows or columns; () for another op."""
    if fused_kind(o.op) != kind or root_of(o.op):
        return ()
    space: tuple[int, ...] = ()
    for op in ops_inside(o.op):
        if op.name != "gflow.reduce":
            continue
        shape, dims = type_of(op.operands[0]).shape, read(OPS["reduce"], op.attributes)["dims"]
        last = len(shape) - 1
        wanted = (last,) if kind == "row" else tuple(range(last))
        if space not in ((), shape) or tuple(dims) != wanted:
            return ()
        space = shape
    return space


def _is_product(o: Op) -> bool:
    return root_of(o.op) is not None


def _product_space(o: Op, options: JoinOptions) -> tuple[int, ...]:
    """The index space of the epilogue of a product that may sum columns on its tiles; () for another op."""
    root = root_of(o.op) if o.name == "fused" else None
    if root is None or root.name != "gflow.matmul":
        return ()
    ty = type_of(root.results[0])
    space = max((type_of(r).shape for r in o.op.results), key=lambda s: TensorType(s, "i1").numel)
    suits = ty.rank == 2 and type_of(root.operands[0]).dtype in _PRODUCT_TYPES
    if not suits or space[-1:] != ty.shape[-1:] or TensorType(space, "i1").numel != ty.numel:
        return ()
    enough = ty.shape[0] >= options.least_rows and ty.shape[1] >= options.shortest
    return space if enough and _PER_TILE * ty.numel >= options.programs * _PRODUCT_TILE else ()


def _fits(space: tuple[int, ...], options: JoinOptions) -> bool:
    if len(space) < 2:
        return False
    enough = TensorType(space[:-1], "i1").numel >= options.least_rows
    return enough and options.shortest <= space[-1] <= options.longest


def _columns(o: Op) -> _Columns | None:
    """The description of a column kernel; None if it does more than float32 sums and ops in the shape of the sums."""
    *inner, end = ops_inside(o.op)
    sums = [op for op in inner if op.name == "gflow.reduce"]
    space = type_of(sums[0].operands[0]).shape
    size = TensorType(space, "i1").numel
    for op in sums:
        kind = read(OPS["reduce"], op.attributes)["kind"]
        if kind != "sum" or type_of(op.operands[0]).dtype != "f32":
            return None
    gives = {r: y for r, y in zip(o.results, end.operands) if type_of(y).numel == size}
    ends = [y for y in end.operands if type_of(y).numel != size]
    before = _cone([*(op.operands[0] for op in sums), *gives.values()], inner, [])
    after = _cone(ends, inner, sums)
    if any(op in sums for op in before):
        return None
    if any(type_of(v).numel == size for op in after for v in op.operands):
        return None
    wide = {
        v
        for v in _arguments(o, before, sums)
        if type_of(o.op.operands[o.operands.index(v)]).numel == size
    }
    return _Columns(o, space, wide, gives, sums, before, after)


def _arguments(o: Op, *ops: Iterable[ir.Operation]) -> list[int]:
    """The operands of a kernel that some ops of it read."""
    given = [v for some in ops for op in some for v in op.operands]
    numbers = {ir.BlockArgument(v).arg_number for v in given if isinstance(v.owner, ir.Block)}
    return [o.operands[n] for n in sorted(numbers)]


def _cone(
    values: Sequence[ir.Value], inner: Sequence[ir.Operation], stop: Sequence[ir.Operation]
) -> list[ir.Operation]:
    """The ops that compute `values` from the values in `stop`, in order."""
    stack, found = list(values), set(stop)
    while stack:
        value = stack.pop()
        if not isinstance(value.owner, ir.Block) and value.owner.operation not in found:
            found.add(value.owner.operation)
            stack += value.owner.operation.operands
    return [op for op in inner if op in found and op not in stop]


def _can_join(order: _Order, r: Op, c: _Columns) -> bool:
    """Whether a row kernel over the same space, or a product, may sum columns: it comes at a possible position, and
    has all values."""
    if _is_product(r) and (c.gives or not c.wide <= {*r.results}):
        return False
    feeds = not c.gives.keys().isdisjoint(r.operands)
    if not feeds and not c.wide <= {*r.operands, *r.results}:
        return False
    for v in _needed(c):
        if order.made[v] >= r.index and v not in r.results:
            return False
    last = max(r.index, c.o.index)
    given = all(u >= r.index for u in order.users(c.gives))
    return given and all(u > last for u in order.users(c.sums_to))


def _shared(r: Op, c: _Columns) -> int:
    """The number of large values that both kernels read or write."""
    return len(c.wide & {*r.operands, *r.results}) + len(c.gives.keys() & set(r.operands))


def _needed(c: _Columns) -> list[int]:
    """The operands that the sums, and the values over the whole index space, need."""
    given = [v for v in c.gives.values() if isinstance(v.owner, ir.Block)]
    numbers = {ir.BlockArgument(v).arg_number for v in given}
    passed = {c.o.operands[n] for n in numbers}
    return sorted({*_arguments(c.o, c.before, c.sums), *passed})


def _within(r: Op, columns: Sequence[_Columns], options: JoinOptions) -> list[_Columns]:
    """As many of the kernels as the limits of operands and types allow; none of them needs the sums of another."""
    taken: list[_Columns] = []
    sums: set[int] = set()
    operands, results = {*r.operands}, [v.type for v in r.op.results]
    for c in columns:
        types = {v.type for v in (*r.op.operands, *c.o.op.operands)}
        outputs = {*results, *(t.type for t in c.o.op.results)}
        more = operands | set(_needed(c))
        fits = len(more) <= options.max_inputs and max(len(types), len(outputs)) < MIXED_GROUPS
        if fits and sums.isdisjoint(_needed(c)):
            taken.append(c)
            operands = more
            sums.update(c.sums_to)
    return taken


def _join(order: _Order, r: Op, columns: Sequence[_Columns], options: JoinOptions) -> None:
    """Rebuild the row kernel with partial sums, and build the kernels that follow the sums."""
    body = order.body
    if not columns:
        return
    rows = TensorType(columns[0].space[:-1], "i1").numel
    each = -(-rows // options.programs)
    length = _PRODUCT_RUN if _is_product(r) else -(-each // _TILE) * _TILE
    sums = _build_rows(body, r, columns, length)
    for group, at in _groups(order, r, columns):
        _build_columns(group, sums, body.ops[at].op)
        for c in group:
            order.needs[c.o.index] = min(c.o.index, r.index)
            for v in c.sums_to:
                order.made[v] = at
    for v in (v for c in columns for v in c.gives):
        order.made[v] = r.index
    for o in sorted([r, *(c.o for c in columns)], key=lambda o: -o.index):
        o.op.erase()


def _groups(
    order: _Order, r: Op, columns: Sequence[_Columns]
) -> Iterable[tuple[list[_Columns], int]]:
    """Partition the ops that depend on the sums into kernels, each with the op that it precedes (or replaces).

    They are one kernel if none of its results is read before the position of the last of them.
    """
    at = max([r.index, *(c.o.index for c in columns)])
    users = order.users(v for c in columns for v in c.sums_to)
    types = {v.type for c in columns for v in (*c.o.op.operands, *c.o.op.results)}
    if all(u > at for u in users) and len(types) < MIXED_GROUPS:
        return [(list(columns), at)]
    return [([c], max(r.index, c.o.index)) for c in columns]


def _build_rows(
    body: Body, r: Op, columns: Sequence[_Columns], length: int
) -> dict[ir.Value, ir.Value]:
    """Build the row kernel, or the product, with the partial sums of columns. Returns the partial sums by the result
    that they are for."""
    given = {v: c.o.op.results[c.o.results.index(v)] for c in columns for v in c.gives}
    joined = {r.index, *(c.o.index for c in columns)}
    returned = set(body.returned)
    given |= dict(zip(r.results, r.op.results))
    kept = [given[v] for v in given if v in returned or not joined.issuperset(body.users[v])]
    own = set(given.values())
    more = [c.o.op.operands[c.o.operands.index(v)] for c in columns for v in _needed(c)]
    operands = [v for v in (*r.op.operands, *more) if v not in own]
    shape = (-(-TensorType(columns[0].space[:-1], "i1").numel // length), columns[0].space[-1])
    sums: list[ir.Value] = [op.results[0] for c in columns for op in c.sums]
    outputs = [(type_of(v), v) for v in kept]
    outputs += [(TensorType(shape, "f32"), v) for v in sums]
    outputs.sort(key=lambda out: str(out[0]))
    summed: dict[ir.Value, ir.Value] = {}
    location = ir.Location.fused([r.op.location, *(c.o.op.location for c in columns)])
    with ir.InsertionPoint(r.op), location:
        region = Region(fused_kind(r.op), operands, [t for t, _ in outputs])
        with ir.InsertionPoint(region.block):
            for o in sorted([r, *(c.o for c in columns)], key=lambda o: o.index):
                known = region.enter(o.op)
                if o is r:
                    *inner, end = ops_inside(r.op)
                    for op in inner:
                        clone_into(op, known)
                    region.inside |= {v: known[y] for v, y in zip(r.op.results, end.operands)}
                    continue
                c = next(c for c in columns if c.o is o)
                for op in c.before:
                    clone_into(op, known)
                region.inside |= {given[v]: known[y] for v, y in c.gives.items()}
                for op in c.sums:
                    with op.location:
                        attrs = {"run": length}
                        summed[op.results[0]] = builder.build(
                            "partial_sums", [known[op.operands[0]]], attrs
                        )
            made = region.inside | summed
            builder.build_op("yield", [made[key] for _, key in outputs], {}, [])
    results = {key: v for (_, key), v in zip(outputs, region.op.results)}
    for v in kept:
        v.replace_all_uses_with(results[v])
    return {v: results[v] for v in sums}


def _build_columns(
    columns: Sequence[_Columns], sums: dict[ir.Value, ir.Value], before: ir.Operation
) -> None:
    """Build the ops that depend on the sums, as one kernel over the partial sums."""
    outputs: list[tuple[TensorType, ir.Value, ir.Value]] = []
    operands: list[ir.Value] = []
    for c in columns:
        end = ops_inside(c.o.op)[-1]
        pairs = zip(c.o.results, c.o.op.results, end.operands)
        outputs += [(type_of(v), v, y) for number, v, y in pairs if number in c.sums_to]
        arguments = c.o.op.regions[0].blocks[0].arguments
        used = {v for op in c.after for v in op.operands}
        used |= {y for n, y in zip(c.o.results, end.operands) if n in c.sums_to}
        operands += [v for a, v in zip(arguments, c.o.op.operands) if a in used]
        operands += [sums[op.results[0]] for op in c.sums]
    outputs.sort(key=lambda out: str(out[0]))
    locations = [c.o.op.location for c in columns]
    location = locations[0] if len(locations) == 1 else ir.Location.fused(locations)
    with ir.InsertionPoint(before), location:
        region = Region("column", operands, [t for t, _, _ in outputs])
        known: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint(region.block):
            for c in columns:
                known |= region.enter(c.o.op)
                for op in c.sums:
                    with op.location:
                        attrs = {**read(OPS["reduce"], op.attributes), "dims": (0,)}
                        known[op.results[0]] = builder.build(
                            "reduce", [region.inside[sums[op.results[0]]]], attrs
                        )
                for op in c.after:
                    clone_into(op, known)
            builder.build_op("yield", [known[y] for _, _, y in outputs], {}, [])
    for (_, v, _), new in zip(outputs, region.op.results):
        v.replace_all_uses_with(new)


PASS = Pass("gflow-join-reductions", run, JoinOptions, __doc__ or "")

"""The description of a kernel as data: index space, loads, expression DAG, reductions, stores.

Both code generators (MLIR text for CPUs, Triton for GPUs) read only this description. `describe` builds it
from a `gflow.fused` region, and turns broadcasts, transposes and unit reshapes into strides:

    %s = gflow.broadcast %b {dims = [1]}        load b, strides (0, 1)
    %t = gflow.add %x, %s                  →    add(load x, load b)
    gflow.yield %t                              store t, strides (n, 1)

The index space has the shape of the reductions' operand or, without reductions, of the largest result. Neighbouring
dimensions that are contiguous with each other in every operand are merged, so most kernels have one or two dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, row_major_strides, tensor_type, without_ones

from ..ir.errors import CannotLower
from ..ir.fused import CONTRACTIONS
from ..ir.ssa import Op
from ..ir.views import Row
from ..memory.analyses import analysis
from .dimensions import neighbours

#: the nodes of the results of a `gflow.softmax_runs`: the first is a value at each position, the others are only stored
OF_RUNS = ("softmax_runs", "run_maxima", "run_sums", "picked")
#: nodes that a kernel stores with addresses of their own
APART = frozenset({"partial_sums", *OF_RUNS[1:]})

#: for each dimension of a value, the dimension of the index space that it maps to; -1 where its size is 1
DimMap = tuple[int, ...]


@dataclass
class Node:
    """One value of the expression DAG.

    Attributes:
        op: "load", "const", "index" (a linear position as i64), "reduce", "partial_sums", "random", "row" (the value
            in one row of a matrix), a result of "softmax_runs" (`OF_RUNS`), or an elementwise op's name.
        dtype: the element type of the value.
        args: indices of operand nodes in `Kernel.nodes`.
        attrs: the op's attributes.
        slot: for "load" the index into `Kernel.loads`, for "index" into `Kernel.indices`.
        depth: the most reductions on a path from a load to this node, itself included.
        dims: the dimensions of the index space that the value varies along.
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    slot: int = -1
    depth: int = 0
    dims: frozenset[int] = frozenset()


@dataclass
class Access:
    """A load or store.

    Attributes:
        operand: the number of the fused op's operand (for a store, result).
        dtype: the element type in memory.
        strides: one stride for each dimension of the index space, in elements.
        node: for a store, the node whose value is stored.
        offset: elements to add to the operand's address.
        width: elements of a padded row, all of which may be accessed; 0 where rows are not padded.
    """

    operand: int
    dtype: str
    strides: tuple[int, ...]
    node: int = -1
    offset: int = 0
    width: int = 0

    def along(self, strides: tuple[int, ...]) -> Access:
        """The access with the strides of another index space."""
        return Access(self.operand, self.dtype, strides, self.node, self.offset, self.width)


@dataclass
class Kernel:
    """A kernel over an index space.

    Attributes:
        sizes: the sizes of the index space's dimensions.
        reduced: the dimensions that its reductions combine.
        nodes: the expression DAG in topological order, operands before users.
        loads: what "load" nodes read.
        indices: the strides of "index" nodes, whose value is the sum of coordinate times stride.
        stores: what the kernel writes.
    """

    sizes: tuple[int, ...]
    reduced: frozenset[int]
    nodes: list[Node]
    loads: list[Access]
    indices: list[tuple[int, ...]]
    stores: list[Access]

    @property
    def numel(self) -> int:
        """The number of positions of the index space."""
        return prod(self.sizes)


@dataclass
class _Region:
    """The region of a `gflow.fused` op as plain data. Values are numbered: arguments first, then results in order.

    Attributes:
        types: of the values.
        owners: for each value, the number of its op; -1 for arguments.
        names: of the ops, without `gflow.`.
        operands: of the ops, as value numbers.
        attributes: of the ops: the declared ones, in the order of their declaration; None: an optional one is absent.
        yielded: the values that the region yields.
        key: all of this, to find a region that computes the same.
        roots: the values that a kernel reads as an additional operand: the results of contractions.
        left: the numbers of results that another kernel stores.
    """

    types: list[TensorType]
    owners: list[int]
    names: list[str]
    operands: list[tuple[int, ...]]
    attributes: list[tuple[Any, ...]]
    yielded: tuple[int, ...]
    key: tuple[Any, ...]
    roots: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()

    def read(self, op: int) -> dict[str, Any]:
        """The attributes of an op as plain data."""
        definition, given = OPS[self.names[op]], self.attributes[op]
        known = {name: a for name, a in zip(definition.attrs, given) if a is not None}
        return read(definition, known) if given else {}

    def result(self, value: int) -> int:
        """The number of a value among the results of its op."""
        owner, first = self.owners[value], value
        while first and self.owners[first - 1] == owner:
            first -= 1
        return value - first

    def after(self, root: int) -> frozenset[int]:
        """The numbers of the results that depend on a value."""
        found = {root}
        for value, owner in enumerate(self.owners):
            if owner >= 0 and not found.isdisjoint(self.operands[owner]):
                found.add(value)
        return frozenset(n for n, v in enumerate(self.yielded) if v in found)

    def part(self, roots: frozenset[int], left: frozenset[int]) -> _Region:
        """The region without some results, and without the ops that the others do not need."""
        stack = [v for n, v in enumerate(self.yielded) if n not in left]
        needed: set[int] = set()
        while stack:
            owner = self.owners[value := stack.pop()]
            if owner >= 0 and value not in roots and owner not in needed:
                needed.add(owner)
                stack += self.operands[owner]
        names = [name if n in needed else "" for n, name in enumerate(self.names)]
        return replace(self, names=names, roots=roots, left=left)


def _read_region(op: ir.Operation) -> _Region:
    block = op.regions[0].blocks[0]
    number: dict[ir.Value, int] = {}
    kinds = [v.type for v in block.arguments]
    for v in block.arguments:
        number[v] = len(number)
    owners = [-1] * len(number)
    names: list[str] = []
    operands: list[tuple[int, ...]] = []
    attributes: list[tuple[Any, ...]] = []
    *body, last = block.operations
    for view in body:
        inner = view.operation
        name = inner.name.removeprefix("gflow.")
        declared = OPS[name].attrs
        if declared:
            given = inner.attributes
            attributes.append(tuple([given.get(n) for n in declared]))
        else:
            attributes.append(())
        operands.append(tuple([number[v] for v in inner.operands]))
        for result in inner.results:
            number[result] = len(number)
            owners.append(len(names))
            kinds.append(result.type)
        names.append(name)
    yielded = tuple([number[v] for v in last.operation.operands])
    key = tuple(kinds), tuple(names), tuple(operands), tuple(attributes), yielded
    types = [tensor_type(kind) for kind in kinds]
    roots = frozenset(
        v for v, owner in enumerate(owners) if owner >= 0 and names[owner] in CONTRACTIONS
    )
    return _Region(types, owners, names, operands, attributes, yielded, key, roots)


class _Describer:
    def __init__(self, region: _Region, inputs: Sequence[tuple[int, ...]]) -> None:
        self.region = region
        self.inputs = inputs
        self.space, self.reduced = _index_space(region)
        self.nodes: list[Node] = []
        self.loads: list[Access] = []
        self.indices: list[tuple[int, ...]] = []
        self.memo: dict[tuple[int, DimMap], int] = {}
        self.unique: dict[Any, int] = {}
        self.slots: dict[tuple[Any, ...], int] = {}

    def add(self, node: Node) -> int:
        # attributes are compared by repr: 0.0 == -0.0, but they are different constants
        attrs = (
            tuple(sorted([(name, repr(v)) for name, v in node.attrs.items()])) if node.attrs else ()
        )
        key = (node.op, node.dtype, node.args, node.slot, attrs)
        found = self.unique.get(key)
        if found is None:
            found = self.unique[key] = len(self.nodes)
            self.nodes.append(node)
        return found

    def load(self, operand: int, dtype: str, strides: tuple[int, ...], offset: int = 0) -> int:
        """The node that loads an operand."""
        key = (operand, dtype, strides, offset)
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = len(self.loads)
            self.loads.append(Access(operand, dtype, strides, offset=offset))
        return self.add(Node("load", dtype, slot=slot))

    def strides(
        self, shape: tuple[int, ...], own: tuple[int, ...], dim_map: DimMap
    ) -> tuple[int, ...]:
        out = [0] * len(self.space)
        for size, stride, d in zip(shape, own, dim_map):
            if d >= 0 and size != 1:
                out[d] += stride
        return tuple(out)

    def demand(self, value: int, dim_map: DimMap) -> int:
        """The node that computes `value`, whose dimension i maps to dimension dim_map[i] of the index space."""
        key = (value, dim_map)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.make(value, dim_map)
        return found

    def make(self, value: int, dim_map: DimMap) -> int:
        region = self.region
        ty, owner = region.types[value], region.owners[value]
        if owner < 0:
            return self.load(value, ty.dtype, self.strides(ty.shape, self.inputs[value], dim_map))
        name, operands = region.names[owner], region.operands[owner]
        if value in region.roots or (name == "reshape" and operands[0] in region.roots):
            # the contraction's result, or a reshape of it: an additional, row-major operand
            strides = self.strides(ty.shape, row_major_strides(ty.shape), dim_map)
            return self.load(len(self.inputs), ty.dtype, strides)
        if name == "constant":
            elements = region.attributes[owner][0]
            if not is_splat(elements):
                raise CannotLower("a constant in a kernel must be a splat")
            return self.add(Node("const", ty.dtype, attrs={"value": _splat_value(elements)}))
        attrs = region.read(owner)
        match name:
            case "iota":
                return self.convert_index(
                    self.index(ty.shape, [int(d == attrs["dim"]) for d in range(ty.rank)], dim_map),
                    ty,
                )
            case "random":
                index = self.index(ty.shape, row_major_strides(ty.shape), dim_map)
                seed = self.demand_rng(operands[0], 0)
                offset = self.demand_rng(operands[0], 1)
                keep = {"kind": attrs["kind"], "stream": attrs["stream"]}
                return self.add(Node("random", ty.dtype, (index, seed, offset), keep))
            case "broadcast":
                x = region.types[operands[0]]
                inner = tuple(
                    [dim_map[d] if size != 1 else -1 for size, d in zip(x.shape, attrs["dims"])]
                )
                return self.demand(operands[0], inner)
            case "reshape":
                inner = unit_reshape_map(region.types[operands[0]].shape, ty.shape, dim_map)
                return self.demand(operands[0], inner)
            case "transpose":
                inner_map = [-1] * ty.rank
                for i, p in enumerate(attrs["permutation"]):
                    inner_map[p] = dim_map[i]
                return self.demand(operands[0], tuple(inner_map))
            case "reduce":
                return self.reduce(operands[0], attrs, ty, dim_map)
            case "slice":
                return self.row(operands[0], attrs, ty)
            case "partial_sums":
                full = tuple(range(len(self.space)))
                x = region.types[operands[0]]
                if x.shape != self.space:
                    raise CannotLower(f"partial sums of {x} over {self.space}")
                summed = self.demand(operands[0], full)
                return self.add(Node("partial_sums", ty.dtype, (summed,), {"run": attrs["run"]}))
            case "softmax_runs":
                return self.softmax_runs(value, operands, attrs["run"])
        args = tuple([self.demand(x, dim_map) for x in operands])
        return self.add(
            Node(name, ty.dtype, args, {k: v for k, v in attrs.items() if v is not None})
        )

    def row(self, operand: int, attrs: dict[str, Any], ty: TensorType) -> int:
        """The node of a slice of one position of all dimensions but the last: a row of the matrix of all positions."""
        x = self.region.types[operand]
        *starts, first = attrs["starts"]
        if x.shape != self.space or first or ty.shape != (*(1 for _ in starts), x.shape[-1]):
            raise CannotLower(f"a slice of {x} to {ty} inside a kernel over {self.space}")
        strides = row_major_strides(x.shape[:-1])
        number = sum(n * s for n, s in zip(starts, strides))
        full = tuple([d if size != 1 else -1 for d, size in enumerate(x.shape)])
        return self.add(Node("row", ty.dtype, (self.demand(operand, full),), {"row": number}))

    def softmax_runs(self, value: int, operands: tuple[int, ...], run: int) -> int:
        """The node of a result of a `gflow.softmax_runs`."""
        x, index = operands
        if self.region.types[x].shape != self.space or 1 in self.space:
            raise CannotLower(f"softmax_runs of {self.region.types[x]} over {self.space}")
        of = self.demand(x, (0, 1))
        name = OF_RUNS[self.region.result(value)]
        if name == "picked":
            return self.add(Node(name, "f32", (of, self.demand(index, (0,)))))
        values = self.add(Node("softmax_runs", "f32", (of,), {"run": run}))
        return values if name == "softmax_runs" else self.add(Node(name, "f32", (values,)))

    def demand_rng(self, value: int, which: int) -> int:
        """Word `which` of the generator state, which is an argument, as a scalar load."""
        return self.load(value, "i64", (0,) * len(self.space), which)

    def index(self, shape: tuple[int, ...], own: Sequence[int], dim_map: DimMap) -> int:
        strides = self.strides(shape, tuple(own), dim_map)
        if strides not in self.indices:
            self.indices.append(strides)
        return self.add(Node("index", "i64", slot=self.indices.index(strides)))

    def convert_index(self, node: int, ty: TensorType) -> int:
        return (
            node
            if ty.dtype == "i64"
            else self.add(Node("convert", ty.dtype, (node,), {"dtype": ty.dtype}))
        )

    def reduce(self, operand: int, attrs: dict[str, Any], ty: TensorType, dim_map: DimMap) -> int:
        x = self.region.types[operand]
        dims = attrs["dims"]
        identity = tuple([d if size != 1 else -1 for d, size in enumerate(x.shape)])
        kept = tuple([identity[d] for d in range(x.rank) if d not in dims])
        if x.shape != self.space or kept != dim_map:
            raise CannotLower(
                f"a reduction of {x} over {list(dims)} does not fit the kernel's index space {self.space}"
            )
        if all(x.shape[d] == 1 for d in dims):  # one element is its own sum, product and maximum
            one = self.demand(operand, identity)
            same = ty.dtype == x.dtype
            return one if same else self.add(Node("convert", ty.dtype, (one,), {"dtype": ty.dtype}))
        return self.add(
            Node("reduce", ty.dtype, (self.demand(operand, identity),), {"kind": attrs["kind"]})
        )


def unit_reshape_map(inner: tuple[int, ...], outer: tuple[int, ...], dim_map: DimMap) -> DimMap:
    """The dimension map of a reshape's operand, for a reshape that only adds or removes dimensions of size 1.

    Args:
        inner: the shape of the operand.
        outer: the shape of the result.
        dim_map: the map of the result.

    Raises:
        CannotLower: the reshape changes other dimensions.
    """
    real = [d for size, d in zip(outer, dim_map) if size != 1]
    if without_ones(inner) != without_ones(outer):
        raise CannotLower(f"a reshape of {inner} to {outer} inside a kernel")
    found = iter(real)
    return tuple(next(found) if size != 1 else -1 for size in inner)


def of_runs(value: ir.Value) -> bool:
    """Whether a value of a region has a number for each run of rows or columns, or for each row of a softmax's runs."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    first = op.name == "gflow.softmax_runs" and value == op.results[0]
    return op.name in ("gflow.partial_sums", "gflow.softmax_runs") and not first


def _splat_value(elements: ir.DenseElementsAttr) -> float | int | bool:
    value = elements.get_splat_value()
    if isinstance(value, ir.FloatAttr | ir.BoolAttr):
        return value.value
    return ir.IntegerAttr(value).value


def _index_space(region: _Region) -> tuple[tuple[int, ...], frozenset[int]]:
    """The shape of the index space and its reduced dimensions."""
    for number, (name, operands) in enumerate(zip(region.names, region.operands)):
        if name == "reduce":
            return region.types[operands[0]].shape, frozenset(region.read(number)["dims"])
        if name == "partial_sums":
            space = region.types[operands[0]].shape
            return space, frozenset({len(space) - 1})
        if name == "softmax_runs":
            return region.types[operands[0]].shape, frozenset()
    shapes = [
        region.types[v].shape
        for n, v in enumerate(region.yielded)
        if v not in region.roots and n not in region.left
    ]
    return max(shapes, key=lambda s: (prod(s), len(s)), default=()), frozenset()


def describe(
    op: ir.Operation, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
) -> Kernel:
    """The kernel of a `gflow.fused` op.

    If the region contains a contraction, the kernel is its epilogue: the contraction's result is a load, numbered as an
    additional operand, and the kernel does not store it.

    Args:
        op: the fused op.
        inputs: for each operand, its strides in memory, in elements.
        outputs: for each result, its strides in memory, in elements.

    Raises:
        CannotLower: the region isn't a single kernel, which is an error of fusion.
    """
    return _described(_read_region(op), inputs, outputs)


def describe_apart(
    op: ir.Operation,
    value: ir.Value,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
) -> tuple[Kernel, Kernel]:
    """Two kernels of a `gflow.fused` op: of the results that don't depend on `value`, a value of its region, and of
    those that do.

    In the second, `value` is a load, numbered as an additional operand. The other arguments are those of `describe`.
    """
    region = _read_region(op)
    *inner, _ = op.regions[0].blocks[0].operations
    made = [r for view in inner for r in view.operation.results]
    root = len(op.operands) + made.index(value)
    after = region.after(root)
    others = frozenset(range(len(region.yielded))) - after
    parts = region.part(region.roots, after), region.part(frozenset({root}), others)
    own, apart = (_described(part, inputs, outputs) for part in parts)
    return own, apart


def _described(
    region: _Region, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
) -> Kernel:
    d = _Describer(region, inputs)
    full = tuple(i if s != 1 else -1 for i, s in enumerate(d.space))
    kept = tuple(full[i] for i in range(len(d.space)) if i not in d.reduced)
    kept_shape = tuple(d.space[i] for i in range(len(d.space)) if i not in d.reduced)
    stores = []
    for i, (value, own) in enumerate(zip(region.yielded, outputs)):
        if value in region.roots or i in region.left:
            continue
        ty, owner = region.types[value], region.owners[value]
        if owner >= 0 and region.names[owner] == "partial_sums":
            node = d.demand(value, ())
            along = (*(0 for _ in d.space[1:]), own[-1])
            stores.append(Access(i, ty.dtype, along, node))
            continue
        if owner >= 0 and region.names[owner] == "softmax_runs" and region.result(value):
            stores.append(Access(i, ty.dtype, (own[-1], 0), d.demand(value, (0, 1))))
            continue
        if ty.shape == d.space:
            dim_map = full
        elif without_ones(ty.shape) == without_ones(kept_shape):
            dim_map = unit_reshape_map(ty.shape, kept_shape, kept)
        else:
            dim_map = unit_reshape_map(ty.shape, d.space, full)
        node = d.demand(value, dim_map)
        stores.append(Access(i, ty.dtype, d.strides(ty.shape, own, dim_map), node))
    kernel = Kernel(d.space, d.reduced, d.nodes, d.loads, d.indices, stores)
    return simplify(kernel)


class Descriptions:
    """The kernels of a function's regions, each described once for the same strides. Regions that compute the same
    share a kernel, as those of equal layers do."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[tuple[int, ...], ...], int], Kernel] = {}
        self._equal: dict[tuple[Any, ...], Kernel] = {}

    def __call__(
        self, o: Op, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
    ) -> Kernel:
        """As `describe`, of an op of the function. The caller must not modify the result."""
        strides = (*inputs, *outputs)
        key = o.index, strides, len(inputs)
        kernel = self._known.get(key)
        if kernel is None:
            region = _read_region(o.op)
            same = region.key, strides, len(inputs)
            kernel = self._equal.get(same)
            if kernel is None:
                kernel = self._equal[same] = _described(region, inputs, outputs)
            self._known[key] = kernel
        return kernel


def descriptions(function: func.FuncOp) -> Descriptions:
    """The descriptions of a function's regions, for code that has not changed the function yet: they may come from
    the cache."""
    return analysis(function, descriptions, Descriptions)


def with_rows(k: Kernel, loads: Sequence[Row | None], stores: Sequence[Row | None]) -> Kernel:
    """The kernel with `Access.width` set where rows of operands or results are padded.

    loads, stores: for each operand and each result, its padded row (`ir.views.Row`), or None.
    """
    if not any(loads) and not any(stores):
        return k

    def wide(a: Access, rows: Sequence[Row | None]) -> Access:
        row = rows[a.operand] if a.operand < len(rows) else None
        if row is None or a.offset or (row.size, 1) not in zip(k.sizes, a.strides):
            return a
        return replace(a, width=row.width)

    return replace(
        k,
        loads=[wide(a, loads) for a in k.loads],
        stores=[wide(a, stores) for a in k.stores],
    )


def simplify(k: Kernel) -> Kernel:
    """The kernel with merged dimensions, and with `dims` and `depth` of its nodes filled in."""
    return annotate(_merge_dims(k))


def _merge_dims(k: Kernel) -> Kernel:
    """Drop dimensions of size 1, and merge neighbours whose strides allow it in every access."""
    walks = [a.strides for a in k.loads] + list(k.indices) + [a.strides for a in k.stores]
    # stores of reduced values have stride 0 along reduced dimensions, which satisfies the rule: 0 == 0 * size
    groups = neighbours(k.sizes, walks, [d in k.reduced for d in range(len(k.sizes))])
    sizes = [prod(k.sizes[d] for d in group) for group in groups]

    def narrow(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[group[-1]] for group in groups)

    return Kernel(
        tuple(sizes),
        frozenset(i for i, group in enumerate(groups) if group[0] in k.reduced),
        k.nodes,
        [a.along(narrow(a.strides)) for a in k.loads],
        [narrow(s) for s in k.indices],
        [a.along(narrow(a.strides)) for a in k.stores],
    )


def annotate(k: Kernel) -> Kernel:
    """Fill in `dims` and `depth` of all nodes, in place; operands precede their users."""
    for node in k.nodes:
        if node.op == "load":
            node.dims = frozenset(d for d, s in enumerate(k.loads[node.slot].strides) if s)
        elif node.op == "index":
            node.dims = frozenset(d for d, s in enumerate(k.indices[node.slot]) if s)
        for a in node.args:
            node.dims |= k.nodes[a].dims
            node.depth = max(node.depth, k.nodes[a].depth)
        if node.op == "reduce":
            node.depth += 1
            node.dims -= k.reduced
        elif node.op == "row":
            node.dims &= {len(k.sizes) - 1}
        elif node.op == "partial_sums":
            node.dims &= k.reduced
    return k

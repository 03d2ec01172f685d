"""Data-movement ops (pad, concatenate, reverse, iota, index_copy) as strided copies and as kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..ir.ssa import Body, Op, aliases
from ..ir.views import Layout
from .description import Access, Kernel, Node, simplify


class Placed(Protocol):
    """The addresses and strides of a function's values."""

    @property
    def body(self) -> Body:
        """The function's values and ops."""

    def place(self, value: int) -> Place:
        """The address of a value's first element."""

    def strides(self, value: int) -> tuple[int, ...]:
        """A value's strides in memory, in elements."""


#: stands for an address that is not assigned yet
NOWHERE = Place("arena", 0, 0)


class Unplaced(NamedTuple):
    """Values with known strides and without addresses, as before `gflow-plan-memory`."""

    body: Body
    at: Sequence[Layout]

    def place(self, value: int) -> Place:
        return NOWHERE

    def strides(self, value: int) -> tuple[int, ...]:
        return self.at[value].strides


class Copy(NamedTuple):
    """A copy of a tensor of type `ty` from one place to another.

    Strides are in elements, one for each dimension. They may be 0 (repeat) or negative (reverse).
    """

    source: Place
    source_strides: tuple[int, ...]
    target: Place
    target_strides: tuple[int, ...]
    ty: TensorType


def shifted(place: Place, elements: int, ty: TensorType) -> Place:
    """The address `elements` elements of type `ty` after `place`."""
    return place._replace(offset=place.offset + elements * ty.itemsize)


def counting(b: Placed, o: Op) -> tuple[list[Node], tuple[int, ...]]:
    """The nodes of the kernel of an `iota`, and the strides of its "index" node."""
    dim = read(OPS["iota"], o.op.attributes)["dim"]
    ty = b.body.types[o.results[0]]
    nodes = [Node("index", "i64", slot=0)]
    if ty.dtype != "i64":
        nodes.append(Node("convert", ty.dtype, (0,), {"dtype": ty.dtype}))
    return nodes, tuple(int(d == dim) for d in range(ty.rank))


def concatenation(b: Placed, o: Op) -> Iterator[Copy]:
    """The copies of a `concatenate`: each operand into its part of the result."""
    (r,) = o.results
    dim = read(OPS["concatenate"], o.op.attributes)["dim"]
    ty, strides = b.body.types[r], b.strides(r)
    start = 0
    for x in o.operands:
        part = b.body.types[x]
        target = shifted(b.place(r), start * strides[dim], ty)
        yield Copy(b.place(x), b.strides(x), target, strides, part)
        start += part.shape[dim]


def reversal(b: Placed, o: Op) -> Iterator[Copy]:
    """The copy of a `reverse`, with negative source strides; none if there are no elements."""
    (x,), (r,) = o.operands, o.results
    dims = read(OPS["reverse"], o.op.attributes)["dims"]
    ty, own = b.body.types[x], b.strides(x)
    if ty.numel == 0:
        return
    start = shifted(b.place(x), sum((ty.shape[d] - 1) * own[d] for d in dims), ty)
    flipped = tuple(-s if d in dims else s for d, s in enumerate(own))
    yield Copy(start, flipped, b.place(r), b.strides(r), ty)


class Moved(NamedTuple):
    """A kernel with one store and at most one load, the address that it reads, and the address that it writes."""

    k: Kernel
    sources: tuple[Place, ...]
    target: Place


def converting(
    ty: TensorType, strides: tuple[int, ...], dtype: str, target: tuple[int, ...]
) -> Kernel:
    """The kernel that copies a tensor and converts its elements to `dtype`; its dimensions have the order of the copy.

    ty: the type of the source. strides, target: of the source and of the copy, in elements.
    """
    dims = sorted(range(ty.rank), key=lambda d: -target[d])
    sizes, strides, target = (tuple(x[d] for d in dims) for x in (ty.shape, strides, target))
    nodes = [Node("load", ty.dtype, slot=0), Node("convert", dtype, (0,), {"dtype": dtype})]
    loads, stores = [Access(0, ty.dtype, strides)], [Access(0, dtype, target, 1)]
    return simplify(Kernel(sizes, frozenset(), nodes, loads, [], stores))


def zeros(ty: TensorType, strides: tuple[int, ...]) -> Kernel:
    """The kernel that writes zeros to a tensor. strides: in elements."""
    nodes = [Node("const", ty.dtype, attrs={"value": 0})]
    store = Access(0, ty.dtype, strides, 0)
    return simplify(Kernel(ty.shape, frozenset(), nodes, [], [], [store]))


def copying(c: Copy) -> Moved:
    """The kernel of a copy."""
    load, store = (
        Access(0, c.ty.dtype, c.source_strides),
        Access(0, c.ty.dtype, c.target_strides, 0),
    )
    nodes = [Node("load", c.ty.dtype, slot=0)]
    k = Kernel(c.ty.shape, frozenset(), nodes, [load], [], [store])
    return Moved(simplify(k), (c.source,), c.target)


def written_over(body: Body, o: Op) -> bool:
    """Whether an `index_copy` updates an argument in place, so that its operand need not be copied first."""
    updated = aliases(body.terminator.parent.opview, body)
    alias = dict(zip(body.returned, updated)).get(o.results[0])
    return alias is not None and body.arguments[alias] == o.operands[0]


def padding(b: Placed, o: Op) -> Iterator[Copy]:
    """The copies of a `pad`: the padding value, dimension by dimension, then the operand."""
    (x, value), (r,) = o.operands, o.results
    attrs = read(OPS["pad"], o.op.attributes)
    ty, strides, place = b.body.types[r], b.strides(r), b.place(r)
    inner = list(ty.shape)
    for d, (low, high) in enumerate(zip(attrs["low"], attrs["high"])):
        for start, size in ((0, low), (ty.shape[d] - high, high)):
            if size > 0:
                part = TensorType((*inner[:d], size, *inner[d + 1 :]), ty.dtype)
                at = shifted(place, start * strides[d], ty)
                yield Copy(b.place(value), (0,) * ty.rank, at, strides, part)
        place = shifted(place, low * strides[d], ty)
        inner[d] -= low + high
    yield Copy(b.place(x), b.strides(x), place, strides, b.body.types[x])


def kernels(b: Placed, o: Op, around: bool = False) -> Iterator[Moved]:
    """The kernels of an `iota`, `concatenate`, `reverse`, `pad` or `index_copy`, in order.

    Args:
        b: the places of the function's values.
        o: the op.
        around: for `pad`: write the padding value only around the operand. Otherwise it is written everywhere, and the
            operand over it. For `index_copy` there is only the copy of its first operand, none if it works in place.
    """
    r = o.results[0]
    ty, strides = b.body.types[r], b.strides(r)
    match o.name:
        case "iota":
            nodes, walk = counting(b, o)
            store = Access(0, ty.dtype, strides, len(nodes) - 1)
            k = Kernel(ty.shape, frozenset(), nodes, [], [walk], [store])
            yield Moved(simplify(k), (), b.place(r))
        case "pad" if around:
            yield from map(copying, padding(b, o))
        case "pad":
            x, value = o.operands
            low, place = read(OPS["pad"], o.op.attributes)["low"], b.place(r)
            yield copying(Copy(b.place(value), (0,) * ty.rank, place, strides, ty))
            inner = shifted(place, sum(a * s for a, s in zip(low, strides)), ty)
            yield copying(Copy(b.place(x), b.strides(x), inner, strides, b.body.types[x]))
        case "index_copy":
            x = o.operands[0]
            if not written_over(b.body, o):
                yield copying(Copy(b.place(x), b.strides(x), b.place(r), strides, ty))
        case _:
            parts = concatenation(b, o) if o.name == "concatenate" else reversal(b, o)
            yield from map(copying, parts)

"""Kernel selection on a CPU for ops that are neither fused nor contractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from gflow.compiler.targets.processors import ANY
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most
from gflow.dialects.ops import OPS
from gflow.dialects.ops.quantized import GROUP

from ....ir.ssa import Body, Op
from ....ir.views import Layout
from ...blocks import LANES
from ...dimensions import walk_of
from ...movement import Unplaced, kernels
from ..choice import Choice
from .loops import runs, way_of_loops
from .sharing import At, of_quantized, sharing

#: data-movement ops
MOVEMENT = ("iota", "pad", "concatenate", "reverse")

#: register tiles of products with quantized weights: rows of x, and columns of the result
_TILES = ((1, 4 * LANES), (2, 4 * LANES), (4, 2 * LANES))


def movement(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The choice for a data-movement op: its copies, each with a loop nest."""
    made = [m.k for m in kernels(Unplaced(body, at), o, around=True) if runs(m.k)]
    return Choice("kernel", then=tuple(map(way_of_loops, made))) if made else Choice("none")


def index_copy(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The choice for an `index_copy`: a copy of its first operand unless it works in place, then the slices."""
    copied = movement(o, body, at)
    dim, ty = read(OPS[o.name], o.op.attributes)["dim"], body.types[o.operands[0]]
    count = body.types[o.operands[1]].numel
    others = [n for d, n in enumerate(ty.shape) if d != dim]

    def nanoseconds(size: At) -> float:
        return prod(map(size, others)) * size(count) * ty.itemsize / ANY.copied

    return Choice("kernel", then=copied.then, **sharing(nanoseconds))


#: the element sizes in bytes that gflow's kernel supports
_ELEMENTS = (1, 2, 4, 8)
#: the least number of elements of a result for which PyTorch's kernel is called if slices have short contiguous runs
_SCATTERED = 1 << 12


def take(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The choice for a `take`: gflow's kernel, or PyTorch's for large results with short contiguous runs."""
    (x, index), (r,) = o.operands, o.results
    dim, ty = read(OPS[o.name], o.op.attributes)["dim"], body.types[x]
    shape, rank = body.types[r].shape, body.types[index].rank
    strides = at[r].strides
    ends = (strides[dim + rank - 1] if rank else 0, *strides[dim + rank :])
    walk = walk_of(ty.shape, dim, (*strides[:dim], *ends), at[x].strides)
    scattered = walk.sizes[-1] < LANES and at_most(prod(shape)) >= _SCATTERED
    if ty.itemsize not in _ELEMENTS or scattered:
        return Choice("pytorch")

    def nanoseconds(size: At) -> float:
        return prod(map(size, shape)) * ty.itemsize / ANY.copied

    return Choice("kernel", **sharing(nanoseconds))


def quantized_matmul(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The choice for a product with weights of 8 or 4 bits: its register tile, and whether all threads run it."""
    bits = read(OPS[o.name], o.op.attributes)["bits"]
    (m, k), n = body.types[o.operands[0]].shape, body.types[o.results[0]].shape[1]
    tile = next((t for t in _TILES if t[0] >= at_most(m)), _TILES[-1])
    return Choice("kernel", tile=(*tile, GROUP), **sharing(of_quantized(m, n, k, bits)))


CHOOSERS: Mapping[str, Callable[[Op, Body, Sequence[Layout]], Choice]] = {
    **dict.fromkeys(MOVEMENT, movement),
    "index_copy": index_copy,
    "take": take,
    "quantized_matmul": quantized_matmul,
}

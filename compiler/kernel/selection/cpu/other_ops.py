"""The choices for ops that are neither fused nor contractions, on a processor."""

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

#: ops that only move or make elements
MOVEMENT = ("iota", "pad", "concatenate", "reverse")

#: of a product with quantized weights: rows of x at a time, and outputs with them
_TILES = ((1, 4 * LANES), (2, 4 * LANES), (4, 2 * LANES))


def movement(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """Copies, each with its loops."""
    made = [m.k for m in kernels(Unplaced(body, at), o, around=True) if runs(m.k)]
    return Choice("kernel", then=tuple(map(way_of_loops, made))) if made else Choice("none")


def index_copy(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The copy that is written into, unless the result lies over the operand, and the slices, shared or not."""
    copied = movement(o, body, at)
    dim, ty = read(OPS[o.name], o.op.attributes)["dim"], body.types[o.operands[0]]
    count = body.types[o.operands[1]].numel
    others = [n for d, n in enumerate(ty.shape) if d != dim]

    def nanoseconds(size: At) -> float:
        return prod(map(size, others)) * size(count) * ty.itemsize / ANY.copied

    return Choice("kernel", then=copied.then, **sharing(nanoseconds))


#: bytes of an element that the kernel of slices moves as one
_ELEMENTS = (1, 2, 4, 8)
#: elements of a result from which on PyTorch's kernel is called where slices have few neighbouring elements each
_SCATTERED = 1 << 12


def take(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """Slices read at indices: by a kernel, shared or not, but where each has few neighbouring elements."""
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
    """The register tile of a product with weights in 8 or 4 bits, and whether threads share it."""
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

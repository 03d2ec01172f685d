"""Kernel selection on a CPU for ops that are neither fused nor contractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from gflow.compiler.targets.processors import ANY
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.ops.quantized import GROUP
from gflow.dialects.types import is_row_major

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


#: operations for each element of a window
_COMPARED = 4
#: the element types of gflow's maxima, and the elements of a plane that their positions count
_MAXIMA, _PLANE = ("f32", "bf16"), 1 << 31


def pooled_lines(
    o: Op, body: Body, strides: Sequence[tuple[int, ...]]
) -> list[tuple[int, int, int, int, int, int]] | None:
    """The three spatial dimensions of a maximum pooling or of its gradient, with leading ones of size 1: sizes of the
    input and of the result, kernel, stride, padding and dilation. None if gflow has no kernel for it.

    There is one for dense channels-last data and regular windows, and for gradients whose positions a pooling of the
    function found in the same windows: it adds only what windows hold.

    strides: of the op's operands and results.
    """
    values = (*o.operands, *o.results)
    attrs, types = read(OPS[o.name], o.op.attributes), [body.types[v] for v in values]
    dense = all(is_row_major(ty.shape, s) for ty, s in zip(types, strides))
    if attrs["layout"] != "N*C" or attrs.get("size") is not None or not dense:
        return None
    grad = o.name == "max_pool_grad"
    if types[0].dtype not in _MAXIMA or any(ty.dtype == "ui8" for ty in types):
        return None
    if grad and not _of_windows(o, body, attrs):
        return None
    inner, outer = (types[-1], types[0]) if grad else (types[0], types[len(o.operands)])
    spatial = conv_dims("N*C", inner.rank)[2]
    if at_most(prod(inner.shape[d] for d in spatial)) >= _PLANE:
        return None
    dilation = attrs.get("dilation") or (1,) * len(spatial)
    walk = zip(attrs["kernel"], attrs["stride"], attrs["padding"], dilation)
    lines = [(inner.shape[d], outer.shape[d], *line) for d, line in zip(spatial, walk)]
    return [(1, 1, 1, 1, 0, 1)] * (3 - len(lines)) + lines


def _of_windows(o: Op, body: Body, attrs: Mapping[str, Any]) -> bool:
    """Whether the positions of a gradient are those that a pooling with the same windows found."""
    number = body.producer[o.operands[1]]
    if number < 0 or body.ops[number].name != "max_pool":
        return False
    found = body.ops[number]
    own = read(OPS[found.name], found.op.attributes)
    names = ("kernel", "stride", "padding", "dilation", "layout", "size")
    same = all(own.get(name) == attrs.get(name) for name in names)
    return same and body.types[found.operands[0]].shape == body.types[o.results[0]].shape


def max_pool(o: Op, body: Body, at: Sequence[Layout]) -> Choice:
    """The choice for a maximum pooling or its gradient: gflow's kernel where there is one, otherwise PyTorch's."""
    values = (*o.operands, *o.results)
    lines = pooled_lines(o, body, [at[v].strides for v in values])
    if lines is None:
        return Choice("pytorch")
    walked = body.types[o.results[0]].shape
    each = prod(kernel for _, _, kernel, _, _, _ in lines)
    if o.name == "max_pool_grad":
        each = max(each // prod(stride for _, _, _, stride, _, _ in lines), 1)

    def nanoseconds(size: At) -> float:
        return prod(map(size, walked)) * each * _COMPARED / ANY.operations

    return Choice("kernel", **sharing(nanoseconds))


CHOOSERS: Mapping[str, Callable[[Op, Body, Sequence[Layout]], Choice]] = {
    **dict.fromkeys(MOVEMENT, movement),
    "index_copy": index_copy,
    "take": take,
    **dict.fromkeys(("max_pool", "max_pool_grad"), max_pool),
    "quantized_matmul": quantized_matmul,
}

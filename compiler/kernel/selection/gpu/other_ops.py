"""Kernel selection on a GPU for ops that are neither fused nor contractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod

from gflow.compiler.targets import Device, Target
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ....ir.ssa import Body, Op
from ....ir.views import Layout
from ...dimensions import neighbours
from ...registers import register_dtype
from ...sizes import WIDE, cdiv, power_of_two
from ..choice import Choice, Way, way_of
from .calls import configs_of_call, given_of, has_kernel
from .other_blocks import (
    ORDERED,
    compared_configs,
    index_add_configs,
    index_copy_configs,
    movement_ways,
    piece_configs,
)
from .region.block_sizes import busy

Chooser = Callable[[Op, Body, Sequence[Layout], Target], Choice]

KERNEL, PYTORCH, NONE = Choice("kernel"), Choice("pytorch"), Choice("none")


def _empty(o: Op, body: Body) -> bool:
    """Whether all results are empty."""
    return not any(body.types[r].numel for r in o.results)


def always(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for an op with a single way to run: no kernel if its results are empty."""
    return NONE if o.results and _empty(o, body) else KERNEL


def movement(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for a data-movement op: its copies."""
    ways = movement_ways(o, body, at, target.device)
    return KERNEL.with_ways(ways) if ways else NONE


def index_copy(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for `index_copy`: a copy of its first operand unless it works in place, then the slices."""
    copies = movement_ways(o, body, at, target.device)
    slices = [way_of(index_copy_configs(o, body)[0])] if body.types[o.operands[2]].numel else []
    return KERNEL.with_ways([*copies, *slices]) if copies or slices else NONE


def one_kernel(
    configs: Callable[[Op, Body, Target], list[TritonConfig]],
) -> Chooser:
    """The selection for ops with one launch. configs: their configurations, the model's choice first."""

    def choose(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
        found = NONE if _empty(o, body) else configs(o, body, target)
        return found if isinstance(found, Choice) else KERNEL.with_ways([way_of(found[0])])

    return choose


# -- index_add

#: up to so many indices are ranked by comparing each with all others, which takes less time than a sort
COMPARED = 32768


def index_add(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for `index_add`, whose launches are deterministic (no atomics).

    The indices are sorted in scratch, together with their positions. Long runs of equal indices are then summed in
    pieces, and the last launch adds these sums and the remaining rows to each row of the result.
    """
    if body.types[o.results[0]].numel == 0:
        return NONE
    if not index_add_fits(o, body, at):
        return PYTORCH
    ty = body.types[o.operands[1]]
    scratch = 0
    for part in (*ordered_indices(ty), piece_sums(o, body)):
        scratch = -(-(scratch + part.nbytes) // 64) * 64
    first = ORDERED[:1] if 0 < ty.numel <= COMPARED else []
    pieces = piece_configs(o, body)[:1] if piece_of(ty.numel) else []
    ways = [*first, *pieces, index_add_configs(o, body)[0]]
    return Choice("kernel", scratch).with_ways([way_of(w) for w in ways])


#: with fewer indices, runs of equal indices are not summed in pieces
_LONG_RUN = 1024


def piece_of(count: int) -> int:
    """The length of a piece of `count` sorted indices, which one program sums if all of them are equal; 0: no pieces.

    The longest chain of additions for a run of n equal indices is then shorter than 2 * piece + n / piece.
    """
    return power_of_two(isqrt(count)) // 2 if count >= _LONG_RUN else 0


def piece_sums(o: Op, body: Body) -> TensorType:
    """The type of the partial sums: [batch × pieces, elements of a row]."""
    ty, count = body.types[o.operands[0]], body.types[o.operands[1]].numel
    dim, piece = read(OPS["index_add"], o.op.attributes)["dim"], piece_of(count)
    pieces = prod(ty.shape[:dim]) * (count // piece) if piece else 0
    return TensorType((pieces, prod(ty.shape[dim + 1 :])), register_dtype(ty.dtype))


def index_add_fits(o: Op, body: Body, at: Sequence[Layout]) -> bool:
    """Whether gflow's kernel supports an `index_add`.

    The dimensions before `dim` must be mergeable into one, and so must those behind it. Sizes must fit 32 bits, and
    bool and float64 are not supported.
    """
    x, index, _ = o.operands
    ty, walk = body.types[x], at[x].strides
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    simple = _one_walk(ty.shape[:dim], walk[:dim]) and _one_walk(
        ty.shape[dim + 1 :], walk[dim + 1 :]
    )
    small = max(body.types[index].numel, ty.shape[dim]) < WIDE
    return simple and small and ty.dtype not in ("i1", "f64")


def ordered_indices(index: TensorType) -> tuple[TensorType, TensorType]:
    """The types of the sorted indices and of their positions before sorting."""
    few = index.numel <= COMPARED
    kind = "i32" if few else "i64"
    return TensorType((index.numel,), kind if few else index.dtype), TensorType(
        (index.numel,), kind
    )


def _one_walk(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dimensions can be merged into one."""
    return len(neighbours(shape, [strides])) < 2


# -- argmax and argmin

#: elements of a tile
TILE = 1024
#: the fewest elements of a row that one program reduces
SHARE = 4096
#: the most programs that share a row
_PIECES = 1024

#: the element type in registers, by element type. PyTorch does not support the others (uint64) either
POSITION_REGISTERS = {
    "f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32", "i64": "i64", "ui32": "i64", "i32": "i32", "i16": "i32",
    "i8": "i32", "ui16": "i32", "ui8": "i32", "i1": "i32",
}  # fmt: skip


def position(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for argmax and argmin. If there are few rows, several programs share each."""
    (x,), (r,) = o.operands, o.results
    ty = body.types[x]
    (dim,) = read(OPS["reduce"], o.op.attributes)["dims"]
    if body.types[r].numel == 0:
        return NONE
    if ty.dtype not in POSITION_REGISTERS:
        return PYTORCH
    length, rows = ty.shape[dim], prod((*ty.shape[:dim], *ty.shape[dim + 1 :]))
    block = _block(rows, length, at[x].strides[dim] == 1)
    pieces = _pieces(rows, length, block, target.device)
    scratch = 0
    if pieces > 1:
        values, places = position_sums(ty, dim, pieces)
        scratch = -(-(values.nbytes + places.nbytes + 64) // 64) * 64
    warps = max(1, min(4, block[0] * block[1] // 128))
    compared = [way_of(compared_configs(pieces)[0])] if pieces > 1 else []
    return Choice("argmax", scratch).with_ways(
        [Way(block=block, warps=warps, stages=1, pieces=pieces), *compared]
    )


def position_sums(ty: TensorType, dim: int, pieces: int) -> tuple[TensorType, TensorType]:
    """The types of the extremum of each piece of each row, and of its position.

    ty: the type of the operand. dim: the reduced dimension. pieces: the number of pieces of a row.
    """
    count = ty.numel // ty.shape[dim] * pieces
    place = "i32" if ty.shape[dim] < WIDE // 2 else "i64"
    return TensorType((count,), POSITION_REGISTERS[ty.dtype]), TensorType((count,), place)


def _block(rows: int, length: int, contiguous: bool) -> tuple[int, int]:
    height, width = power_of_two(rows), max(2, power_of_two(length))
    if contiguous:
        cols = min(width, TILE)
        return min(height, max(1, TILE // cols)), cols
    # neighbouring lanes read neighbouring rows, which are contiguous
    high = min(height, 128)
    return high, min(width, max(2, TILE // high))


def _pieces(rows: int, length: int, block: tuple[int, int], device: Device) -> int:
    programs, enough = cdiv(rows, block[0]), busy(device)
    if programs >= enough:
        return 1
    return min(cdiv(length, max(SHARE, block[1])), cdiv(2 * enough, programs), _PIECES)


def aten(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The choice for an ATen call: gflow's kernel if there is one, otherwise PyTorch's."""
    given = given_of(o, body)
    if given is None or not has_kernel(given):
        return PYTORCH
    return KERNEL.with_ways([way_of(configs_of_call(given)[0])])

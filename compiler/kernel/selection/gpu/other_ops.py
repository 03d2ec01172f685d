"""The choices for ops that are neither fused nor contractions, on a GPU."""

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
    """Whether there is nothing to do."""
    return not any(body.types[r].numel for r in o.results)


def always(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """What runs in one way, if there is something to do."""
    return NONE if o.results and _empty(o, body) else KERNEL


def movement(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """Copies."""
    ways = movement_ways(o, body, at, target.device)
    return KERNEL.with_ways(ways) if ways else NONE


def index_copy(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """The copy that is written into, if any, and the slices."""
    copies = movement_ways(o, body, at, target.device)
    slices = [way_of(index_copy_configs(o, body)[0])] if body.types[o.operands[2]].numel else []
    return KERNEL.with_ways([*copies, *slices]) if copies or slices else NONE


def one_kernel(
    configs: Callable[[Op, Body, Target], list[TritonConfig]],
) -> Chooser:
    """What chooses for an op that is one launch."""

    def choose(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
        found = NONE if _empty(o, body) else configs(o, body, target)
        return found if isinstance(found, Choice) else KERNEL.with_ways([way_of(found[0])])

    return choose


# -- sums that go back to where an index says

#: up to so many indices are ranked by comparing each with each, which takes less time than to begin a sort
COMPARED = 32768


def index_add(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """Indices are put in order first, in scratch, with the places where they stood; then come sums of pieces of long
    runs of equal indices."""
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


#: with fewer indices no run of equal ones is so long that its parts are worth a launch
_LONG_RUN = 1024


def piece_of(count: int) -> int:
    """How many neighbours among sorted indices are summed by a program of their own, if they are equal; 0 of few
    indices. A run of n equal ones is then one row's sum of fewer than two pieces and of n / piece sums of others."""
    return power_of_two(isqrt(count)) // 2 if count >= _LONG_RUN else 0


def piece_sums(o: Op, body: Body) -> TensorType:
    """The sums of whole pieces, one for each batch and piece."""
    ty, count = body.types[o.operands[0]], body.types[o.operands[1]].numel
    dim, piece = read(OPS["index_add"], o.op.attributes)["dim"], piece_of(count)
    pieces = prod(ty.shape[:dim]) * (count // piece) if piece else 0
    return TensorType((pieces, prod(ty.shape[dim + 1 :])), register_dtype(ty.dtype))


def index_add_fits(o: Op, body: Body, at: Sequence[Layout]) -> bool:
    """Whether the dimensions before and behind the one that is added to are walked as one, and types and sizes fit."""
    x, index, _ = o.operands
    ty, walk = body.types[x], at[x].strides
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    simple = _one_walk(ty.shape[:dim], walk[:dim]) and _one_walk(
        ty.shape[dim + 1 :], walk[dim + 1 :]
    )
    small = max(body.types[index].numel, ty.shape[dim]) < WIDE
    return simple and small and ty.dtype not in ("i1", "f64")


def ordered_indices(index: TensorType) -> tuple[TensorType, TensorType]:
    """The indices in order, and where each of them stood."""
    few = index.numel <= COMPARED
    kind = "i32" if few else "i64"
    return TensorType((index.numel,), kind if few else index.dtype), TensorType(
        (index.numel,), kind
    )


def _one_walk(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dimensions are walked as one."""
    return len(neighbours(shape, [strides])) < 2


# -- positions

#: elements of a tile
TILE = 1024
#: elements of a row that a program takes at least
SHARE = 4096
#: programs that share a row at most
_PIECES = 1024

#: the element type in registers; of others (64 bits without a sign) PyTorch finds none either
POSITION_REGISTERS = {
    "f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32", "i64": "i64", "ui32": "i64", "i32": "i32", "i16": "i32",
    "i8": "i32", "ui16": "i32", "ui8": "i32", "i1": "i32",
}  # fmt: skip


def position(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """argmax and argmin: programs share rows where these are few."""
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
    """The best of each piece of each row, and where it stands."""
    count = ty.numel // ty.shape[dim] * pieces
    place = "i32" if ty.shape[dim] < WIDE // 2 else "i64"
    return TensorType((count,), POSITION_REGISTERS[ty.dtype]), TensorType((count,), place)


def _block(rows: int, length: int, contiguous: bool) -> tuple[int, int]:
    height, width = power_of_two(rows), max(2, power_of_two(length))
    if contiguous:
        cols = min(width, TILE)
        return min(height, max(1, TILE // cols)), cols
    # lanes side by side in memory are of neighbouring rows
    high = min(height, 128)
    return high, min(width, max(2, TILE // high))


def _pieces(rows: int, length: int, block: tuple[int, int], device: Device) -> int:
    programs, enough = cdiv(rows, block[0]), busy(device)
    if programs >= enough:
        return 1
    return min(cdiv(length, max(SHARE, block[1])), cdiv(2 * enough, programs), _PIECES)


def aten(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    """A kernel where a call has one, or else the call."""
    given = given_of(o, body)
    if given is None or not has_kernel(given):
        return PYTORCH
    return KERNEL.with_ways([way_of(configs_of_call(given)[0])])

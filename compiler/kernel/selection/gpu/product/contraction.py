"""The contraction of an op, alone or in a fused op, and the choice for it as a tiled product.

%r = "gflow.matmul"(%x, %y)    →    {kind = "product", tile = array<i64: 128, 256, 64>, warps = 8, stages = 3,
                                     loads = "descriptors", persistent = 132}
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gflow.compiler.ir.fused import CONTRACTIONS, operand_sum, root_of, root_operands
from gflow.compiler.ir.ssa import Body, Op
from gflow.compiler.ir.views import Layout, row_of
from gflow.compiler.targets import Target
from gflow.dialects.mlir import ir
from gflow.dialects.program import TritonConfig
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, row_major_strides, type_of

from ...choice import Choice, Way, way_of
from .epilogue import Following, kernels_after, stored
from .operands import VECTOR
from .tiles import Problem, Tile, best_splits, fastest_tile, seconds

#: the element types of products that gflow's kernels support, and the type of their accumulators
SUMS = {
    "f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "i64": "i64", "i32": "i32", "i16": "i32", "i8": "i32",
    "ui8": "i32",
}  # fmt: skip


#: the most rows of whole columns that are reduced after their parts of K are added up, which takes registers
_SPLIT_ROWS = 512

#: the kernel that computes products with K = 0
ZERO = [TritonConfig({"BLOCK": 512}, 4, 2)]


#: the rows of a block of partial sums above which the block is as narrow as a sector of memory
_TALL = 64


def total_configs(result: TensorType, run: int = 1) -> list[TritonConfig]:
    """Configurations of the second launch of split-K, which adds partial sums and computes the epilogue.

    run: rows that the epilogue sums (`Following.run`); a block has a multiple of them.
    """
    if run > _TALL:
        found = [(run, n) for n in (8, 16)]
        return [
            TritonConfig({"BLOCK_M": m, "BLOCK_N": n}, max(4, m * n // 256), 2) for m, n in found
        ]
    width = result.shape[-1] if result.rank else 1
    across = 16 if width <= 16 else 128 if width >= 128 else 32 if width <= 32 else 64
    sizes = ((512, across), (1024, across), (256, across), (512, min(512, 2 * across)))
    blocks = ((max(run, size // n), n if run == 1 else min(n, 32)) for size, n in sizes)
    return [TritonConfig({"BLOCK_M": m, "BLOCK_N": n}, 4, 2) for m, n in dict.fromkeys(blocks)]


@record
class OperandSums:
    """The sums of a product's operand over the contracted dimension, and what follows them.

    Attributes:
        operand: its number: 0 is summed by rows, 1 by columns.
        following: the epilogue of the sums, over one dimension.
    """

    operand: int
    following: Following


@record
class Contraction:
    """A contraction and its epilogue.

    Attributes:
        name: the name of the contraction, without "gflow.".
        op: the contraction, which may be in a fused op.
        operands: the value numbers of its two operands.
        types, strides: of both operands and the result, in that order; strides are in elements. Inside a fused op, the
            result counts as row-major.
        even: whether both operands and the result are aligned to a 16-byte vector.
        following: its epilogue.
        widths: for each operand, the elements of a padded row, all of which may be read; 0: rows are not padded.
        scale: the value number of the scale of a `gflow.scaled_matmul`; -1 without one.
        sums: the sums of an operand that its kernel computes as well; None without.
    """

    name: str
    op: ir.Operation
    operands: tuple[int, int]
    types: tuple[TensorType, TensorType, TensorType]
    strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    even: tuple[bool, bool, bool]
    following: Following
    widths: tuple[int, int] = (0, 0)
    scale: int = -1
    sums: OperandSums | None = None

    @property
    def result(self) -> TensorType:
        """The type of the contraction's own result, before the epilogue."""
        return self.types[2]


def contraction_of(o: Op, body: Body, at: Sequence[Layout]) -> Contraction | None:
    """The contraction of an op; None if it has none."""
    fused = o.name == "fused"
    root = root_of(o.op) if fused else o.op if o.name in CONTRACTIONS else None
    if root is None:
        return None
    numbers = root_operands(root) if fused else range(len(o.operands))
    x, y, *more = (o.operands[n] for n in numbers)
    ty = type_of(root.results[0])
    outputs = [at[v].strides for v in o.results]
    rows = [row_of(body, at, v) for v in o.results]
    sums = None
    if fused:
        inputs = [at[v].strides for v in o.operands]
        read = [row_of(body, at, v) for v in o.operands]
        summed = operand_sum(o.op)
        apart = None if summed is None else summed[0].results[0]
        kernels, after = kernels_after(o.op, root, ty, inputs, outputs, (read, rows), apart)
        following, own = Following(kernels, len(o.operands)), row_major_strides(ty.shape)
        if summed is not None:
            sums = OperandSums(summed[1], Following(after, len(o.operands)))
    else:
        following, own = Following([stored(ty, outputs[0], rows=rows)], 0), outputs[0]
    types = (body.types[x], body.types[y], ty)
    strides = (at[x].strides, at[y].strides, own)
    even = (_even(body, at, x), _even(body, at, y), True)
    return Contraction(
        root.name.removeprefix("gflow."), root, (x, y), types, strides, even, following,
        (_width(body, at, x), _width(body, at, y)), more[0] if more else -1, sums,
    )  # fmt: skip


def _width(body: Body, at: Sequence[Layout], v: int) -> int:
    """The elements of an operand's padded row, all of which may be read; 0: rows are not padded."""
    row = row_of(body, at, v)
    return 0 if row is None else row.width


def _even(body: Body, at: Sequence[Layout], v: int) -> bool:
    return at[v].offset * body.types[v].itemsize % VECTOR == 0


@dataclass
class Used:
    """The tiles that were chosen so far for the products of a function, by a key of the kernel's source."""

    tiles: dict[Hashable, list[Tile]] = field(default_factory=dict)


def choose_product(
    problem: Problem,
    following: Following,
    result: TensorType,
    dtype: str,
    target: Target,
    used: Used,
    structure: Hashable,
    reserved: int = 0,
    copies: Mapping[str, Way] = MappingProxyType({}),
    sums: int = 0,
) -> Choice:
    """The choice for a product.

    Args:
        problem: the product's sizes, without the epilogue.
        following: its epilogue.
        result: the type of its result.
        dtype: the element type of its operands.
        target: the target.
        used: the tiles of earlier products, which are preferred.
        structure: a key of the kernel's source, without the epilogue.
        reserved: bytes of scratch that copies of operands take.
        copies: by operand ("a", "b"), the launch parameters of its copy.
        sums: the number of sums of an operand that it computes.
    """
    splits = splits_of(problem, following, target)
    scratch = reserved
    if splits > 1:
        scratch = -(-(reserved + scratch_of_parts(result, dtype, splits, sums)) // 64) * 64
    run = following.run()
    following = followed_by(splits, following, result, dtype)
    model = with_following(problem, following, splits)
    known = (structure, model.descriptors, splits > 1, model.live > 0, following.structure())
    tiles = used.tiles.setdefault(known, [])
    tile = fastest_tile(model, splits, target, tiles)
    tiles.append(tile)
    return Choice(
        "product", scratch, tile=(tile.m, tile.n, tile.k), warps=tile.warps, stages=tile.stages, parts=tile.parts,
        loads="descriptors" if tile.descriptors else "pointers",
        persistent=tile.descriptors if tile.descriptors and model.descriptors == "PERSISTENT" else 0,
        split_k=splits, copies=tuple(copies),
        then=(*copies.values(), *([way_of(total_configs(result, run)[0])] if splits > 1 else [])),
    )  # fmt: skip


def splits_of(problem: Problem, following: Following, target: Target) -> int:
    """The number of parts of K (split-K) with the least predicted time; 1: K isn't split.

    problem: the product's sizes, without the epilogue `following`.
    """
    # the maxima and sums of runs are those of whole sums over K
    if following.run_of_columns() > 1 or following.whole() > _SPLIT_ROWS:
        return 1
    if following.whole() == 1:
        return best_splits(problem, target)
    return best_splits(problem, target, with_following(problem, following, 1))


def seconds_alone(
    problem: Problem, following: Following, result: TensorType, dtype: str, target: Target
) -> float:
    """The predicted time of a product's own launches, in seconds. The arguments are those of `choose_product`."""
    splits = splits_of(problem, following, target)
    following = followed_by(splits, following, result, dtype)
    model = with_following(problem, following, splits)
    return target.device.launch + seconds(
        model, fastest_tile(model, splits, target), splits, target
    )


def followed_by(splits: int, following: Following, result: TensorType, dtype: str) -> Following:
    """The epilogue on a product's own tiles: with split-K, a store of partial sums. dtype: of the operands."""
    if splits == 1:
        return following
    sums = partial_sums(result, dtype)
    return Following([stored(sums, row_major_strides(sums.shape))], 0)


def partial_sums(result: TensorType, dtype: str) -> TensorType:
    """The type of the partial sums of split-K. dtype: of the operands."""
    kind = SUMS[dtype]
    return TensorType(result.shape, kind if kind in ("f32", "f64") else "i64")


def scratch_of_parts(result: TensorType, dtype: str, splits: int, sums: int) -> int:
    """The bytes of the partial sums of split-K, and behind them of those of an operand. dtype: of the operands."""
    return splits * (partial_sums(result, dtype).nbytes + TensorType((sums,), "f32").nbytes)


def with_following(p: Problem, following: Following, splits: int) -> Problem:
    """The problem with the resources of its epilogue filled in."""
    # rows without alignment are stored element by element, each with its own address
    live = following.live() + following.single(p.n)
    return replace(
        p,
        live=live,
        heavy=p.heavy or following.costly(),
        stored=following.widest(),
        rows=following.run(),
        columns=following.run_of_columns(),
        descriptors="DESCRIPTORS" if p.descriptors and splits > 1 else p.descriptors,
    )


def tile_of(choice: Choice) -> Tile:
    """The tile that a product's choice states."""
    m, n, k = choice.tile
    by = choice.persistent or int(choice.loads == "descriptors")
    return Tile(m, n, k, choice.warps, choice.stages, choice.parts, by)

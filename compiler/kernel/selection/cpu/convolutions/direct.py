"""Convolutions that read the windows of their input in place (direct convolution), and their gradients.

The product of windows and weights is that of `packed_product`, but the weight is packed at each call. No patches are
stored, and a gradient gathers what a product by patches would add up. Taps outside the input are left out, for a tile
of rows at a time: of a 3×3 kernel on a 2×2 map 20 of 36.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from gflow.compiler.targets.processors import ANY, Processor
from gflow.dialects.extents import at_most, varies
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from ....blocks import ITEM, LANES, GradientBlocks, Problem, Strips, words_of
from ....convolution import Geometry, Walk
from ..blocking import blocks_of, halves_are_faster, share_of_library, share_of_peak
from ..strips import cut, cycles
from .patches import sizes_of

#: the part of the products that ordering rows by position must leave of those in the order of memory, which is read in
#: runs
_FEWER = 0.95

#: the most positions of a block in the gradient of a weight, the cycles of an entry of its table and of a position's
#: coordinates, and the shares of a thread
_DEEP, _ENTRY, _POSITION, _SHARES = 512, 5, 12, 8
#: from how many kernels on along a dimension the taps outside of it, which are at its ends, do not count
_FAR = 64
#: the most pairs of a position and a tap along a dimension that are counted; of more, all count as read
_COUNTED = 1 << 16
#: cycles of a run of patches that are stored: its channels, and so many more
_RUN = 4
#: how much faster than in float32 products of bfloat16 values are that convert and pack their operands (Zen 5: 300 to
#: 340 GFLOP/s on ResNet-50's convolutions)
_PACKED = 1.4
#: bytes that are read and written as a bfloat16 value becomes a float32 value
_WIDENED = 6
#: bytes a cycle of gradients that leave the second-level cache between two blocks
_MOVED = 4
#: the part of the second-level cache that a table of addresses takes at most
_TABLE = 8


def reads_windows(g: Geometry, weight: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether there is a direct convolution, for one that may be a product of patches (`kind_of_patches`).

    weight, strides: the type of the weight, and its strides in elements.
    """
    if g.groups > 1:
        return False
    if g.name == "convolution_weight_grad":
        return is_row_major(weight.shape, strides)
    wanted = (g.c * g.taps, *row_major_strides(g.kernel), g.taps)  # PyTorch's [o, c, taps]
    return all(a == b for size, a, b in zip(weight.shape, strides, wanted) if size != 1)


def reads_pairs(g: Geometry, types: Sequence[TensorType]) -> bool:
    """Whether a direct convolution may read bfloat16 operands as they are: two channels, or two positions, at a time.

    types: of its operands.
    """
    gradient = g.name == "convolution_weight_grad"
    return all(ty.dtype == "bf16" for ty in types) and (gradient or g.walk.channels % 2 == 0)


def direct_of(
    p: Processor,
    g: Geometry,
    weight: TensorType,
    strides: tuple[int, ...],
    threads: int,
    precision: str = "",
) -> Strips | None:
    """The blocking of a direct convolution; None where there is none, or where a product of patches is faster.

    weight, strides: the type of the weight, and its strides in elements.
    precision: that of `Strips`.
    """
    if not reads_windows(g, weight, strides):
        return None
    walk = g.walk
    channels = words_of(walk.channels, precision)
    product = Problem(walk.rows, walk.columns, g.taps * channels).most()
    made: dict[tuple[tuple[int, int], bool], float] = {}
    for tile in p.strips:
        each = cycles(p, product, tile)
        made[tile, False] = each * part_of_taps(g, walk, tile[0], False)
        made[tile, True] = each * part_of_taps(g, walk, tile[0], True) / _FEWER
    (tile, by_position), products = min(made.items(), key=lambda item: item[1])
    # a weight is packed 16 elements of the kernel at a time, but 16 channels of a kernel of one element. In float32
    # reading rows in place for each strip costs about as much there as is saved: a product packs rows as well
    blocks = ceil(g.taps / LANES) * LANES / g.taps if g.taps > 1 or not precision else 1
    packing = p.packing * product.k * product.columns * blocks / _rate(p)
    if products + packing > _by_patches(p, g, threads, precision):
        return None
    whole = cut(p, product, tile, ITEM * product.rows * channels, threads)
    width = tile[1] * LANES
    strips = ceil(product.columns / width)
    count = ceil(strips / max(p.block // (ITEM * product.k * width), 1))
    columns = ceil(strips / count) * width
    table = Strips(whole.tile, tile[0], width).scratch(g.taps, walk.channels)[1]
    rows = min(whole.rows, max(p.near // _TABLE // table, 1) * tile[0])
    return Strips(whole.tile, rows, min(whole.across, columns), columns, by_position, precision)


def gradient_of(
    p: Processor,
    g: Geometry,
    weight: TensorType,
    strides: tuple[int, ...],
    threads: int,
    precision: str = "",
) -> GradientBlocks | None:
    """The blocking of the gradient of a weight whose operands are read in place; None as for `direct_of`."""
    if not reads_windows(g, weight, strides) or g.o < min(tile[0] for tile in p.strips):
        return None
    (height, vectors), deep, time = gradient_in_place(p, g, precision)
    if (
        g.pointwise and vectors * LANES < g.c
    ):  # rows are read once, and in parts more slowly than packing reads them
        return None
    if time > _by_patches(p, g, threads, precision):
        return None
    near = p.near // 4 // (ITEM * deep)  # a share's part of dy stays in the second-level cache
    shares = ceil(g.o / max(threads * _SHARES / g.taps, 1))
    beside = max(min(near, shares) // height, 1) * height
    if precision:  # whole pairs
        deep += deep % 2
    return GradientBlocks((height, vectors * LANES, deep), beside, precision)


def gradient_in_place(
    p: Processor, g: Geometry, precision: str = ""
) -> tuple[tuple[int, int], int, float]:
    """The register tile of the gradient of a weight, the positions of a block, and the cycles on one thread.

    precision: that of `GradientBlocks`.
    """
    tiles = [tile for tile in p.strips if tile[0] <= g.o]
    rows = at_most(g.positions)
    most = p.near // 2 // (ITEM * g.c)  # a block of the input stays in the second-level cache
    deep = max(min(rows, _DEEP, p.near // _TABLE // (16 * g.taps), most), 1)
    deep = ceil(rows / ceil(rows / deep))
    # positions at which a tap is inside, on average
    read = rows * part_of_taps(g, g.walk, 1, False) / (2 if precision else 1)

    def time(tile: tuple[int, int]) -> float:
        height, vectors = tile
        tiles = ceil(g.o / height) * ceil(g.c / (vectors * LANES))
        loads = height + vectors + 2
        # a position's gradients of outputs are a part of a cache line, the rest of which is read while it is in the
        # cache about every second time
        part = ITEM * height
        fetched = (ITEM * LANES * vectors + (part + max(part, ANY.line)) / 2) / p.fetched
        each = max(height * vectors / p.issued, loads / p.loaded, p.latency, fetched)
        around = p.around + height * vectors * p.finishing
        return tiles * (read * each + ceil(rows / deep) * around)

    best = min(tiles, key=time)
    table, size = rows * (_ENTRY + _POSITION / g.taps), ITEM * g.o * g.c
    added = size * 2 * (ceil(rows / deep) - 1) / _MOVED if size * g.taps > p.near else 0
    return best, deep, g.taps * (time(best) + table + added)


def _by_patches(p: Processor, g: Geometry, threads: int, precision: str) -> float:
    """The cycles of the convolution by patches on one thread, with the faster of gflow's own product and the BLAS.

    In precision "bf16" operands are widened to float32; gflow's own product rounds them again.
    """
    product = Problem(*sizes_of(g, g.positions)).most()
    halves = bool(precision) and halves_are_faster(p, product)
    blocks = blocks_of(p, product, threads, halves)
    best = share_of_peak(p, product, blocks, threads)
    best = _PACKED * best if halves else max(best, share_of_library(p, product))
    height, width, kc = blocks.tile
    tiles = ceil(product.rows / height) * ceil(product.columns / width) * ceil(product.k / kc)
    around = tiles * (p.around + height * width / LANES * p.finishing)
    moved = 0.0
    if not g.pointwise and (g.name != "convolution" or g.c % LANES):
        moved = at_most(g.positions) * g.taps * (g.c + _RUN)
    if precision:
        widened = at_most(g.positions) * (g.c + g.o) + g.c * g.o * g.taps
        moved += widened * _WIDENED / _MOVED
    return product.rows * product.columns * product.k / _rate(p) / best + around + moved


def _rate(p: Processor) -> float:
    """Multiply-adds a cycle."""
    return p.issued * LANES


def part_of_taps(g: Geometry, walk: Walk, height: int, by_position: bool) -> float:
    """The part of all taps that tiles of `height` rows read, by the order of rows.

    Rows of a tile are consecutive positions of an image, or images at a position.
    """
    if any(map(varies, (g.n, *walk.outputs, *walk.inputs))):
        return 1.0
    found, left = 1.0, height
    if by_position:
        _, left = _along(g.n, left)
    for d in reversed(range(len(walk.outputs))):
        size = walk.outputs[d]
        beside, left = _along(size, left)
        if size > _FAR * walk.kernel[d] or size * walk.kernel[d] > _COUNTED:
            continue
        inside = [[_inside(walk, d, x, k) for k in range(walk.kernel[d])] for x in _order(walk, d)]
        groups = [inside[x : x + beside] for x in range(0, size, beside)]
        found *= sum(len(rows) * sum(map(any, zip(*rows))) for rows in groups)
        found /= size * walk.kernel[d]
    return found


def _along(size: int, rows: int) -> tuple[int, int]:
    """What `rows` consecutive positions span along a dimension, and along the next slower one."""
    if rows >= size or (size % rows and size < 4 * rows):  # mostly across a border
        return size, max(ceil(rows / size), 2 if rows % size else 1)
    return rows, 1


def _order(walk: Walk, d: int) -> list[int]:
    """The positions of a dimension in the order of rows: those with the same remainder by the divisor side by side."""
    size, by = walk.outputs[d], walk.divisor[d]
    return (
        [x for first in range(by) for x in range(first, size, by)]
        if size % by == 0
        else [*range(size)]
    )


def _inside(walk: Walk, d: int, x: int, k: int) -> bool:
    """Whether tap k of position x is inside the input, along dimension d."""
    at = x * walk.stride[d] - walk.padding[d] + k * walk.dilation[d]
    return at % walk.divisor[d] == 0 and 0 <= at // walk.divisor[d] < walk.inputs[d]

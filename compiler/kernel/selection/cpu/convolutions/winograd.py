"""Convolutions by Winograd's algorithm F(2×2, 3×3): where it is faster than reading windows in place, and its blocking.

It multiplies 16 values for four results, where a 3×3 kernel multiplies 36, and transforms inputs, weights and results.
The cost model counts cycles of one thread: of register tiles, whose sums are in short chains, and of the transforms.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, lcm

from gflow.compiler.targets.processors import Processor
from gflow.dialects.extents import varies
from gflow.dialects.types import TensorType, is_row_major

from ....blocks import LANES, Problem, Winograd, WinogradGradient
from ....convolution import Geometry, Walk
from ..strips import cycles
from .direct import gradient_in_place, part_of_taps, reads_windows

#: cycles of the transforms of a tile of the input, of a weight and of a tile of results, for each vector of channels,
#: and those for the addresses of a tile
_INPUT, _WEIGHT, _RESULT, _TILE = 40, 120, 40, 60
#: the same of a tile of the input or of the gradient, where a weight's gradient is computed
_ROWS = 44
#: the share of the products' cycles that is lost to short chains, and cycles around each register tile
_CHAINS, _AROUND = 0.15, 80
#: the most bytes of packed and transformed weights, and of sums of their gradients
_MOST = 20 << 20
#: the fewest tiles of results that a weight is transformed for, and the fewest channels of each side
_TILES, _CHANNELS = 64, 16
#: the most tiles that a thread transforms at a time, the fewest for a weight's gradient, and the shares of a thread
_BLOCK, _DEEP, _SHARES = 96, 24, 4
#: the part of the time in place that it must stay below
_SAVED = 0.9


def transforms(g: Geometry, width: int) -> bool:
    """Whether the algorithm supports a convolution: 3×3 behind any depth, and stride 1.

    width: columns of a strip, into which columns are divided but for part of a vector; any for a weight's gradient.
    """
    walk = g.walk
    if any(map(varies, (g.n, *walk.outputs, *walk.inputs))):
        return False
    ones = set(walk.stride) == set(walk.divisor) == {1} and len(set(walk.dilation)) == 1
    sound = walk.kernel[1:] == (3, 3) and g.groups == 1 and ones and abs(walk.dilation[2]) == 1
    return sound and (g.name == "convolution_weight_grad" or _whole(walk.columns) % width == 0)


def reads_weight(g: Geometry, weight: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether a weight, or its gradient, has one of the orders that are read and written.

    weight, strides: the type of the weight, and its strides in elements.
    """
    return reads_windows(g, weight, strides) or is_by_channels(g, weight, strides)


def is_by_channels(g: Geometry, weight: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether a weight is [o, taps, c] in memory, as that of a channels-last model; otherwise it is [o, c, taps]."""
    return g.name != "convolution_weight_grad" and is_row_major(weight.shape, strides)


def tiles_of(walk: Walk) -> tuple[int, int, int]:
    """The tiles of results: of the depth, down and across."""
    depth, high, wide = walk.outputs
    return depth, ceil(high / 2), ceil(wide / 2)


def winograd_of(p: Processor, g: Geometry, threads: int) -> Winograd | None:
    """The blocking; None where the algorithm is not supported, or reading windows in place is about as fast."""
    if not transforms(g, LANES):
        return None
    walk, tiles = g.walk, _tiles(g)
    narrow = (int(2 * p.issued * p.latency), 1)  # for 16 columns: sums that hide the latency twice
    fitting = (t for t in (*p.tiles, narrow) if _whole(walk.columns) % (t[1] * LANES) == 0)
    height, vectors = next(fitting, (0, 0))
    if not vectors or not _is_large(g, tiles):
        return None
    made = Winograd((height, vectors * LANES), height)
    room = p.near * 3 // 4 - made.each(walk)
    fair = max(ceil(tiles / (threads * _SHARES) / height), 1)
    blocks = min(1 + max(room // made.per_tile(walk) // height, 0), fair, _BLOCK // height)
    made = replace(made, tiles=height * blocks)
    if sum(made.scratch(walk)[:2]) > _MOST:
        return None
    depth, inputs, outputs = walk.kernel[0], _vectors(walk.channels), _vectors(walk.columns)
    register_tiles = 16 * ceil(tiles / height) * ceil(outputs / vectors)
    chain = depth * walk.channels * height * vectors / p.issued * (1 + _CHAINS)
    time = register_tiles * (chain + _AROUND)
    time += tiles * (depth * inputs * _INPUT + outputs * _RESULT + _TILE)
    time += depth * walk.channels * outputs * _WEIGHT
    product = Problem(walk.rows, walk.columns, g.taps * walk.channels)
    in_place = min(
        cycles(p, product, tile) * part_of_taps(g, walk, tile[0], False) for tile in p.strips
    )
    return made if time < _SAVED * in_place else None


def winograd_gradient_of(p: Processor, g: Geometry, threads: int) -> WinogradGradient | None:
    """The blocking of the gradient of a weight; None where the algorithm is not supported, or reading windows in place
    is about as fast."""
    if not transforms(g, LANES) or not _is_large(g, tiles := _tiles(g)):
        return None
    columns = g.walk.kernel[0] * g.c

    def count(tile: tuple[int, int]) -> int:
        return ceil(g.o / tile[0]) * ceil(columns / (tile[1] * LANES))

    height, vectors = min(p.tiles, key=lambda tile: count(tile) * tile[0] * tile[1])
    rows, parts = (4, 1) if threads <= 2 else (1, ceil(threads / 8))
    unit = lcm(height, LANES)
    made = WinogradGradient((height, vectors * LANES), 1, rows, ceil(g.o / parts / unit) * unit)
    room = p.near * 3 // 4 // (4 * (made.v_row(g) + made.d_row(g)))
    made = replace(made, tiles=min(max(room, 1), _BLOCK, tiles))
    if 2 * made.scratch(g)[0] > _MOST or made.tiles < _DEEP:
        return None
    chain = tiles * height * vectors / p.issued * (1 + _CHAINS)
    around = ceil(tiles / made.tiles) * (_AROUND + height * vectors * p.finishing)
    time = 16 * count((height, vectors)) * (chain + around)
    both = g.walk.kernel[0] * _vectors(g.c) + _vectors(g.o) * parts
    time += tiles * (both * _ROWS + 4 * _TILE) + g.o * columns / LANES * _RESULT
    in_place = gradient_in_place(p, g)[2]
    return made if time < _SAVED * in_place else None


def _tiles(g: Geometry) -> int:
    depth, down, across = tiles_of(g.walk)
    return g.n * depth * down * across


def _is_large(g: Geometry, tiles: int) -> bool:
    return tiles >= _TILES and min(g.c, g.o) >= _CHANNELS


def _vectors(channels: int) -> int:
    return ceil(channels / LANES)


def _whole(channels: int) -> int:
    """A number of channels, rounded up to whole vectors."""
    return _vectors(channels) * LANES

"""Products with a packed B on a CPU: the register tile, and the share of a thread.

The cost model counts the cycles of a tile: the greatest of multiply-adds, loads and latency for each step of K, and a
constant for each tile.
"""

from __future__ import annotations

from math import ceil

from gflow.compiler.targets.processors import Processor

from ...blocks import ITEM, LANES, Problem, Strips

#: the number of shares for each thread, if each share takes at least _LONG cycles
_SHARES, _LONG = 4, 20_000


def strip_for(p: Processor, product: Problem, depthwise: bool = False) -> int:
    """The number of columns of a strip with the fewest cycles for a product."""
    return LANES * min(p.strips, key=lambda tile: cycles(p, product, tile, depthwise))[1]


def strips_of(
    p: Processor, product: Problem, width: int, read: int, threads: int, depthwise: bool = False
) -> Strips | None:
    """The blocking of a product with a packed B; None if there are no tiles for strips of this width.

    Args:
        p: the processor.
        product: the product.
        width: columns of a strip.
        read: bytes of A (of a convolution, of the input) that are read.
        threads: the number of threads.
        depthwise: whether it is a depthwise convolution.
    """
    tiles = [tile for tile in p.strips if tile[1] * LANES == width]
    if not tiles:
        return None
    best = min(tiles, key=lambda tile: cycles(p, product, tile, depthwise))
    return cut(p, product, best, read, threads, depthwise)


def cut(
    p: Processor,
    product: Problem,
    tile: tuple[int, int],
    read: int,
    threads: int,
    depthwise: bool = False,
) -> Strips:
    """The blocking with a given tile: rows, and vectors of columns. The others are those of `strips_of`."""
    height, width = tile[0], tile[1] * LANES
    time = cycles(p, product, tile, depthwise)
    m, n, k = product.rows, product.columns, product.k
    down, strips = ceil(m / height), ceil(n / width)
    wanted = threads * max(1, min(_SHARES, int(time / _LONG / threads))) if threads > 1 else 1
    fewest = min(ceil(read / (p.near // 2)), down)

    def traffic(beside: int) -> tuple[int, int]:
        blocks = max(fewest, min(ceil(wanted / beside), down))
        return blocks * ITEM * n * k + beside * read, blocks

    beside = min(range(1, strips + 1), key=traffic)
    _, blocks = traffic(beside)
    rows = ceil(down / blocks) * height
    return Strips((height, width, k), rows, ceil(strips / beside) * width)


def cycles(p: Processor, product: Problem, tile: tuple[int, int], depthwise: bool = False) -> float:
    """The cycles of all tiles of a product on one thread. tile: rows, and vectors of columns."""
    height, vectors = tile
    tiles = ceil(product.rows / height) * ceil(product.columns / (vectors * LANES))
    fetched = ITEM * LANES * vectors / p.fetched
    loads = height + vectors + (height * vectors if depthwise else 0)
    each = max(height * vectors / p.issued, loads / p.loaded, p.latency, fetched)
    return tiles * (product.k * each + p.around + height * vectors * p.finishing)

"""A cost model of float32 matrix products on a CPU: the blocking of gflow's own kernel, and whether the BLAS is faster.

The model predicts the share of the CPU's peak that a blocking reaches. It counts the unused multiply-adds of tiles at
the edges, packing (in units of one multiply-add), and threads that wait for the last share. Timed comparisons at the
first call override its choice between the kernels (`compiler/driver/races.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil

from gflow.compiler.targets.processors import Processor

from ...blocks import AMX_LANES, BF16, BF16X6, LANES, PADDED, Blocks, Problem, item_of
from ...contest import Contest

#: the most rows with which B is read in place, without packing
FEW_ROWS = 16
#: for few rows and contiguous columns of B: rows of a tile, and vectors of its columns
_FLAT = ((1, 8), (2, 8), (4, 6), (8, 3))
#: tiles with SWEEPS rows read B row by row, in strips of at most SWEPT columns. Their epilogue runs on PIECE columns
SWEEPS, SWEPT, PIECE = (1, 2, 4), 1024, 8 * LANES
#: the fewest columns of such a strip, so that rows are long enough for the hardware prefetcher
_SWEPT_LEAST = 512
#: columns that are computed at a time as dot products, where B is contiguous along K
STRIP = 64
#: the number of shares for each thread, where the product has enough rows and columns
_SHARES = 4
#: the fewest tiles in a block of rows, since each block of rows reads a whole block of columns
_LEAST = 4
#: with fewer multiplications packing does not pay
_FEW = 1 << 12
#: the overhead of the BLAS for few rows or columns, as a number of rows or columns
_THIN = 8


@cache
def blocks_of(p: Processor, product: Problem, threads: int, halves: bool = False) -> Blocks:
    """The blocking with packed blocks of B that has the greatest share of the peak by the model.

    halves: the values are bfloat16 values, which the processor multiplies.
    """
    candidates = _candidates(p, product, threads, halves)
    return max(candidates, key=lambda b: share_of_peak(p, product, b, threads))


def halves_are_faster(p: Processor, product: Problem) -> bool:
    """Whether a product of bfloat16 values is made in hardware, in tiles that are not mostly empty."""
    tiles = min(product.rows, product.columns, product.k) > FEW_ROWS
    return p.halves is not None and tiles and not _mostly_small(product)


def _mostly_small(product: Problem) -> bool:
    """Whether a dynamic number of rows is too small for AMX at most calls: its tiles have 32 rows, and each call packs
    B in three parts, so 8 rows take two to three times as long as by multiply-adds."""
    return 0 < product.usual_rows < 2 * AMX_LANES


def cut(p: Processor, contest: Contest, threads: int) -> Blocks:
    """The best blocking for a product and its operands' layouts; with few rows, B is not packed."""
    if contest.product.rows <= FEW_ROWS and (contest.b == "lanes" or contest.a == "k"):
        return rows_of(p, contest.product, threads, contest.b)
    return blocks_of(p, contest.product, threads)


def contiguous(row: int, column: int, one_row: bool) -> str:
    """The contiguous dimension of a product's B: "lanes" (columns) or "k".

    Args:
        row: the stride along K, in elements.
        column: the stride along columns, in elements.
        one_row: whether K is 1; the stride along K is then not used.
    """
    return "k" if column != 1 and (row == 1 or one_row) else "lanes"


@cache
def rows_of(p: Processor, product: Problem, threads: int, columns: str) -> Blocks:
    """The blocking of a product of few rows. columns: B's contiguous dimension, "lanes" (columns) or "k"."""
    m, n, k = product.rows, product.columns, product.k
    if columns == "k":
        height, width, kc = next(h for h in (1, 2, 4, 8) if h >= min(m, 8)), STRIP, k
    else:
        height, vectors = next(tile for tile in _FLAT if tile[0] >= min(m, _FLAT[-1][0]))
        width = PIECE if height in SWEEPS else LANES * min(vectors, p.wide)
        kc = _alike(k, p.kc, PADDED)
    apart = product.batch > 1 and product.batch >= threads
    shares = 1 if apart else threads * _SHARES
    least = width
    if columns == "lanes" and height in SWEEPS:
        least = SWEPT if shares == 1 or threads == 1 else min(_SWEPT_LEAST, ceil(n / threads))
    most = ceil(max(least, n / shares) / width) * width
    if columns == "lanes" and height in SWEEPS:
        most = min(most, SWEPT)
    across = _alike(n, most, width)
    down, whole = ceil(m / height) * height, ceil(n / width) * width
    return Blocks((height, width, kc), down, whole, across, apart, packed=False)


@cache
def own_is_faster(p: Processor, product: Problem, threads: int) -> bool:
    """Whether the model predicts that gflow's own product is faster than the BLAS."""
    if product.rows * product.columns * product.k < _FEW:
        return False
    if product.rows <= FEW_ROWS:  # the library reads B once, too, but calls and packing take longer
        return True
    return speedup(p, product, threads) > 1


@cache
def speedup(p: Processor, product: Problem, threads: int) -> float:
    """The time of the BLAS divided by that of gflow's own product, by the model; for more rows than `FEW_ROWS`."""
    own = share_of_peak(p, product, blocks_of(p, product, threads), threads)
    return own / share_of_library(p, product)


def share_of_library(p: Processor, product: Problem) -> float:
    """The predicted share of the CPU's peak throughput that the BLAS reaches."""
    return p.library / (1 + _THIN * (1 / product.rows + 1 / product.columns))


def share_of_peak(p: Processor, product: Problem, b: Blocks, threads: int) -> float:
    """The predicted share of the CPU's peak throughput of float32 multiply-adds: from 0 to 1, or more with AMX."""
    m, n = product.rows, product.columns
    height, width, _ = b.tile
    made = ceil(m / height) * height * ceil(n / width) * width
    packing, faster = p.packing, 1.0
    if b.precision == BF16X6 and p.amx is not None:
        packing, faster = p.amx.packing, p.amx.faster
    elif not b.precision:
        faster /= 1 + 0.02 * p.tiles.index((height, width // LANES))
    packed = 1 + packing * (1 / m + 1 / n)
    return faster * m * n / made / packed / _waiting(product, b, threads)


def _waiting(product: Problem, b: Blocks, threads: int) -> float:
    """The time of the slowest thread divided by the average time."""
    if b.apart:
        return ceil(product.batch / threads) * threads / product.batch
    columns = min(product.columns, b.columns)
    if threads == 1 or ceil(product.rows / b.rows) * ceil(columns / b.across) > 32 * threads:
        return 1.0
    shares = list(_shares(product, b))
    done = [0.0] * threads
    for share in shares:
        done[done.index(min(done))] += share
    return max(done) * threads / sum(shares)


def _shares(product: Problem, b: Blocks) -> Iterator[float]:
    """The tiles of each share of one block of columns."""
    height, width, _ = b.tile
    columns = min(product.columns, b.columns)
    for row in range(0, product.rows, b.rows):
        for column in range(0, columns, b.across):
            down = ceil(min(b.rows, product.rows - row) / height)
            yield down * ceil(min(b.across, columns - column) / width)


def _candidates(
    p: Processor, product: Problem, threads: int, halves: bool = False
) -> Iterator[Blocks]:
    m, n, k = product.rows, product.columns, product.k
    apart = product.batch > 1 and product.batch >= threads
    team = 1 if apart else threads
    kinds = [
        (height, LANES * vectors, p.kc, p.near // 2, p.block, "") for height, vectors in p.tiles
    ]
    if p.amx is not None and not _mostly_small(product):
        kinds.append((AMX_LANES, AMX_LANES, p.amx.kc, p.amx.near, p.amx.block, BF16X6))
    if halves and p.halves is not None:
        kinds = [(AMX_LANES, AMX_LANES, p.halves.kc, p.halves.near, p.halves.block, BF16)]
    for height, width, longest, near, block, precision in kinds:
        kc = _alike(k, longest, PADDED)
        item = item_of(precision)
        columns = _alike(n, max(block // (item * kc), width) // width * width, width)
        most = max(near // (item * kc * height), 1)
        tiles = ceil(m / height)
        fewest = min(tiles, _LEAST, most)
        for shares in (_SHARES, 2 * _SHARES) if team > 1 else (1,):
            down = min(most, max(fewest, ceil(tiles / (shares * team))))
            rows = ceil(tiles / ceil(tiles / down)) * height
            blocks = ceil(m / rows)
            beside = 1 if team == 1 else max(1, ceil(shares * team / blocks))
            across = _alike(columns, max(width, columns // beside // width * width), width)
            yield Blocks((height, width, kc), rows, columns, across, apart, precision=precision)


def _alike(total: int, most: int, unit: int) -> int:
    """The length of equal parts of `total`, each at most `most`, rounded up to a multiple of `unit`."""
    parts = ceil(total / most)
    return ceil(total / parts / unit) * unit

"""Block sizes and warps of region kernels, by a model of the device.

A memory-bound kernel needs enough bytes in flight: programs for all multiprocessors, a few wide accesses in each
thread, and few registers for each. Each configuration is a kernel to compile, so there are few. The first one is the
model's choice; the others are similar, for autotuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.kernel.description import Access, Kernel
from gflow.compiler.targets import Device
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ....sizes import cdiv, power_of_two
from ...choice import WARP
from .tiling import Tiling, run_of

#: programs for each multiprocessor that keep a device busy
_EACH = 2

#: elements of a tile, and for kernels too small to keep the device busy with such tiles
_LARGE, _SMALL = 1024, 256

#: 32-bit words for each position that are live at once (loaded, stored, accumulated), above which a tile is halved
_ALIVE = 8

#: up to so many rows, few programs reduce them without splitting the reduction
_SHORT = 1024

#: bytes of a sector of a cache line, and the most elements of a tile with whole columns
_SECTOR, _HELD = 32, 8192

#: elements of a tile up to which a thread has eight of them; in larger tiles it has sixteen
_ROW = 2048


def busy(device: Device) -> int:
    """The number of programs that keep a device busy."""
    return _EACH * device.multiprocessors


def configs_of(
    k: Kernel, t: Tiling, device: Device, chosen: TritonConfig | None = None
) -> tuple[TritonConfig, ...]:
    """The configurations of a kernel: `chosen` if given, then the model's choice and similar ones."""
    found = _ways(k, t, device)
    return found if chosen is None else (chosen, *(c for c in found if c != chosen))


def _ways(k: Kernel, t: Tiling, device: Device) -> tuple[TritonConfig, ...]:
    if t.cols < 0:
        return (TritonConfig({}, 1, 1),)
    if t.runs:
        return _runs(k, t)
    if t.cols in k.reduced and not t.loop_cols:
        return _whole_rows(k, t, busy(device))
    if t.held:
        return _whole_columns(k, t, device)
    if t.loop_cols and not t.loop_rows:
        ways = [(1, 2048, 8), (1, 4096, 16), (1, 4096, 8)]
        row = k.sizes[t.cols] * max(_full(k, t, k.loads), default=4)
        if (
            row > device.row
        ):  # fewer programs at a time, so that their rows stay in cache for the next pass
            ways[:2] = ways[1::-1]
        return _configs(t, ways)
    enough = busy(device)
    elements, each = _tile(k, t, enough), 8 if t.axis else _each(k, t, enough)
    warps = max(1, elements // (WARP * each))
    if not t.rows:
        other = (1, elements, 2 * warps) if each == 16 else (1, 2 * elements, warps)
        return _configs(t, [(1, elements, warps), (1, 2 * elements, 2 * warps), other])
    if _transposed(k, t):
        ways = [(32, 32, 4), (64, 32, 8), (64, 64, 8)]
        high = power_of_two(k.sizes[t.rows[0]])
        if high < 32:  # such as the nine taps of a 3×3 filter
            ways = [(high, 64, max(1, high // 4)), (high, 128, max(1, high // 2))]
        return _configs(t, ways[::-1] if _narrow(k, t) else ways)
    # a broadcast operand along one side of the tile is loaded directly by each thread if there are at least as many
    # threads as elements; otherwise its layout conversion goes through shared memory
    cols = min(_width(k, t, device), max(16, 16 * warps))
    rows = elements // cols
    if t.loop_rows and t.cols not in k.reduced:
        return _columns(k, t, rows, cols, warps, enough)
    return _configs(t, [(rows, cols, warps), (2 * rows, cols, 2 * warps), (2 * rows, cols, warps)])


def _columns(
    k: Kernel, t: Tiling, rows: int, cols: int, warps: int, enough: int
) -> tuple[TritonConfig, ...]:
    """Configurations of reductions over the rows of a tile, in which each thread has several loads in flight."""
    length = prod(k.sizes[d] for d in t.rows)
    programs = cdiv(k.sizes[t.cols], cols) * prod(k.sizes[d] for d in t.outer)
    tall, twice = (4 * rows, cols, 2 * warps), (2 * rows, cols, warps)
    if (
        programs < enough and length <= _SHORT
    ):  # partial results of other programs: a loop of few steps is best
        return _configs(t, [tall, twice])
    reads = sum(a.strides[t.cols] != 0 and covers(k, a.strides) for a in k.loads)
    light = reads <= 2 and sum(n.op == "reduce" for n in k.nodes) <= 2
    plain = (rows, cols, warps)
    if light and _narrow(k, t):
        twice = (2 * rows, cols, max(4, warps // 2))
    return _configs(t, [twice, plain, tall] if light else [plain, twice])


def _configs(t: Tiling, choices: list[tuple[int, int, int]]) -> tuple[TritonConfig, ...]:
    found = []
    for rows, cols, warps in choices:
        blocks = {"ROWS": rows, "COLS": cols} if t.rows else {"COLS": cols}
        found.append(TritonConfig(blocks, warps, 1))
    return tuple(found)


def _whole_rows(k: Kernel, t: Tiling, enough: int) -> tuple[TritonConfig, ...]:
    """Configurations for rows that fit a tile: several short rows, or one long row with more warps."""
    cols = power_of_two(k.sizes[t.cols])
    count = prod(k.sizes[d] for d in t.rows)
    rows = max(1, _LARGE // cols)
    if cdiv(count, rows) < enough:
        rows = max(1, _SMALL // cols)
    choices = []
    for height in (rows, 2 * rows):
        if t.rows or height == 1:
            choices.append((height, cols, _warps(height * cols)))
    if rows * cols >= _LARGE:
        choices.append((rows, cols, 2 * _warps(rows * cols)))
    return _configs(t, choices or [(1, cols, _warps(cols))])


def _whole_columns(k: Kernel, t: Tiling, device: Device) -> tuple[TritonConfig, ...]:
    """Configurations for columns that fit a tile: as many as are read as whole sectors of memory, and more only where
    there are programs for all multiprocessors, and elements for few registers."""
    rows = power_of_two(prod(k.sizes[d] for d in t.rows))
    item = max(_full(k, t, (*k.loads, *k.stores)), default=4)
    least = min(max(1, _SECTOR // item), power_of_two(k.sizes[t.cols]))
    cols = min(_width(k, t, device), power_of_two(k.sizes[t.cols]))
    outer = prod(k.sizes[d] for d in t.outer)
    while cols > least and (
        rows * cols > _HELD or cdiv(k.sizes[t.cols], cols) * outer < device.multiprocessors
    ):
        cols //= 2
    warps = min(16, max(1, rows * cols // (WARP * 4)))
    return _configs(t, [(rows, cols, warps), (rows, 2 * cols, min(16, 2 * warps))])


def _runs(k: Kernel, t: Tiling) -> tuple[TritonConfig, ...]:
    """Configurations of kernels with partial sums over runs of rows: a tile has several whole rows of a run."""
    cols = power_of_two(k.sizes[t.cols])
    run = run_of(k)
    fits = [h for h in (1, 2, 4, 8) if run % h == 0 and (h == 1 or h * cols <= 2 * _LARGE)]
    few = [
        h for h in fits if h == 1 or h * cols <= _LARGE
    ]  # a thread has eight elements of few warps
    heights = list(dict.fromkeys([few[-1], *fits[:-3:-1]]))
    choices = [(h, cols, _warps(h * cols)) for h in heights]
    return _configs(t, [*choices, (heights[0], cols, 2 * _warps(heights[0] * cols))])


def _warps(elements: int) -> int:
    """Warps for a tile: eight elements a thread, sixteen in long rows."""
    return min(16, max(1, elements // 256 if elements <= _ROW else elements // 512))


def _full(k: Kernel, t: Tiling, accesses: Sequence[Access]) -> list[int]:
    """The element sizes in bytes of the accesses that cover the index space."""
    return [
        TensorType((), a.dtype).itemsize
        for a in accesses
        if a.strides[t.cols] and covers(k, a.strides)
    ]


def _narrow(k: Kernel, t: Tiling) -> bool:
    """Whether all accesses that cover the index space have elements of at most two bytes."""
    return max(_full(k, t, (*k.loads, *k.stores)), default=4) <= 2


def _each(k: Kernel, t: Tiling, enough: int) -> int:
    """The elements of a thread.

    If a store is wider than another access, one 16-byte vector of that store: all accesses then have one layout, and no
    conversion goes through shared memory. Otherwise 16 for a single load of narrow elements, 8, or 4 in small kernels.
    """
    loads, stores = _full(k, t, k.loads), _full(k, t, k.stores)
    widest = max(stores, default=0)
    if min(loads + stores, default=4) < widest:
        return max(2, 16 // widest)
    large = k.numel >= 2 * enough * _LARGE
    return 16 if large and _narrow(k, t) and len(loads) == 1 else 8 if large or _narrow(k, t) else 4


def _tile(k: Kernel, t: Tiling, enough: int) -> int:
    """The elements of a tile."""
    full = [a for a in (*k.loads, *k.stores) if a.strides[t.cols] and covers(k, a.strides)]
    narrow = _narrow(k, t)
    tile = 2 * _LARGE if narrow else _LARGE
    reduces = [n.dtype for n in k.nodes if n.op == "reduce"] if t.axis else []
    words = sum(cdiv(TensorType((), d).itemsize, 4) for d in [*reduces, *(a.dtype for a in full)])
    tile //= 1 if words <= _ALIVE else 2 if words <= 2 * _ALIVE else 4
    if any(n.op == "reduce" for n in k.nodes):
        return tile  # splitting the reduction makes enough programs
    return tile if cdiv(k.numel, tile) >= enough else _SMALL * (2 if narrow else 1)


def covers(k: Kernel, strides: tuple[int, ...]) -> bool:
    """Whether an access with these strides has a different element for more than half of the index space."""
    return 2 * prod(n for n, s in zip(k.sizes, strides) if s) > k.numel


def _width(k: Kernel, t: Tiling, device: Device) -> int:
    """The columns of a tile with rows: a cache line, between 16 and 128, and 16 for at most 16 columns."""
    n = k.sizes[t.cols]
    full = [a for a in (*k.loads, *k.stores) if a.strides[t.cols] == 1 and covers(k, a.strides)]
    item = max((TensorType((), a.dtype).itemsize for a in full), default=4)
    line = max(16, min(device.line // item, 128))
    return 16 if n <= 16 else line


def _transposed(k: Kernel, t: Tiling) -> bool:
    """Whether some access is contiguous along the rows of a tile instead of its columns."""
    if len(t.rows) != 1 or t.loop_rows or t.cols in k.reduced:
        return False
    (r,) = t.rows
    accesses = (*k.loads, *k.stores)
    return any(a.strides[r] == 1 and a.strides[t.cols] not in (0, 1) for a in accesses)

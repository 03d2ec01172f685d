"""Block sizes and warps of generated kernels, by a model of the device.

A kernel that moves data is as fast as enough bytes are on their way: enough programs for all
multiprocessors, enough bytes in each thread, few registers. The model's choice is the first config; the others
are its neighbours, for whoever can measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ..kernel import Kernel
from .tiling import Tiling

#: multiprocessors, of the smallest device that matters; warps in one, threads in a warp
_PROCESSORS, _WARPS, _LANES = 108, 64, 32

#: bytes that a multiprocessor must have on their way to use its share of the memory's bandwidth
_IN_FLIGHT = 32768

#: registers of a multiprocessor, most of a thread
_REGISTERS, _MOST_REGISTERS = 65536, 255

_CANDIDATES = 3


def power_of_two(n: int) -> int:
    """The least power of two that isn't below `n`."""
    return 1 << max(0, n - 1).bit_length()


def configs_of(k: Kernel, t: Tiling) -> tuple[TritonConfig, ...]:
    """Ways to run a kernel, the best by the model first."""
    if t.cols < 0:
        return (TritonConfig({}, 1, 1),)
    scored = sorted(dict.fromkeys(_blocks(k, t)), key=lambda c: _cost(k, t, *c))
    return tuple(_config(t, *c) for c in scored[:_CANDIDATES])


def _config(t: Tiling, rows: int, cols: int, warps: int) -> TritonConfig:
    blocks = {"COLS": cols}
    if t.rows:
        blocks["ROWS"] = rows
    return TritonConfig(blocks, warps, 1)


def _blocks(k: Kernel, t: Tiling) -> Iterator[tuple[int, int, int]]:
    """Candidates: rows and columns of a tile, warps."""
    n, rows = k.sizes[t.cols], prod(k.sizes[d] for d in t.rows)
    whole = t.cols in k.reduced and not t.loop_cols
    transposed = _transposed(k, t)
    if whole:
        widths = [power_of_two(n)]
    elif transposed:
        widths = [32, 64]
    elif t.loop_cols and not t.loop_rows:
        widths = [512, 1024, 2048, 4096]
    elif t.rows:
        widths = [w for w in (16, 32, 64, 128, 256) if w < 2 * n] or [16]
        if not t.loop_rows:
            widths = [max(widths, key=lambda w: (n / (-(-n // w) * w) > 0.85, w))]
    else:
        widths = [w for w in (128, 256, 512, 1024, 2048, 4096) if w < 2 * n] or [128]
    if transposed:
        rows = max(rows, 64)
    for cols in widths:
        for tile in (128, 256, 512, 1024, 2048, 4096, 8192):
            height = max(1, min(tile // cols, power_of_two(rows))) if t.rows else 1
            if transposed and height not in (16, 32, 64):
                continue
            if not t.rows and cols != tile and not whole:
                continue
            for warps in (1, 2, 4, 8, 16):
                per_thread = height * cols / (warps * _LANES)
                if 1 <= per_thread <= 32 or (warps == 1 and per_thread < 1):
                    yield height, cols, warps


def _transposed(k: Kernel, t: Tiling) -> bool:
    """Whether some access is contiguous along the rows of a tile rather than along its columns."""
    if len(t.rows) != 1 or t.loop_rows or t.cols in k.reduced:
        return False
    (r,) = t.rows
    return any(a.strides[r] == 1 and a.strides[t.cols] not in (0, 1) for a in (*k.loads, *k.stores))


def _cost(k: Kernel, t: Tiling, rows: int, cols: int, warps: int) -> float:
    """An estimate of the time, in arbitrary units; lower is better."""
    n, height = k.sizes[t.cols], prod(k.sizes[d] for d in t.rows)
    tiles_c, tiles_r = max(1, -(-n // cols)), max(1, -(-height // rows))
    outer = prod(k.sizes[d] for d in t.outer)
    threads = warps * _LANES
    per_thread = max(1.0, rows * cols / threads)
    full = [a for a in (*k.loads, *k.stores) if a.strides[t.cols]]
    item = max((TensorType((), a.dtype).itemsize for a in full), default=4)
    loads = max(1, sum(bool(a.strides[t.cols]) for a in k.loads))
    # programs, and steps that each of them takes one after the other
    programs, steps = max(1, outer), 1
    reduced_rows = bool(t.rows) and t.rows[0] in k.reduced
    if reduced_rows:
        steps *= tiles_r
    else:
        programs *= tiles_r
    if t.cols in k.reduced:
        steps *= tiles_c
    else:
        programs *= tiles_c
    if t.split or reduced_rows or t.loop_cols:  # pieces come as needed
        pieces = min(steps, max(1, 4 * _PROCESSORS // max(1, programs)))
        programs, steps = programs * pieces, -(-steps // pieces)
    # registers: every value of the tile that lives at once, and addresses
    alive = min(loads + 2, 8) + (sum(nd.op == "reduce" for nd in k.nodes) if steps > 1 else 0)
    registers = 24 + per_thread * (alive * max(4, item) / 4 * 0.75 + 1)
    spill = max(0.0, registers - 128) / 64
    resident = min(
        _WARPS // warps, 32, int(_REGISTERS / (min(registers, _MOST_REGISTERS) * threads))
    )
    resident = max(1, min(resident, -(-programs // _PROCESSORS)))
    flying = resident * threads * min(per_thread, 16) * item * loads
    speed = min(1.0, flying / _IN_FLIGHT) * min(1.0, programs / _PROCESSORS)
    # 16 bytes a thread and access are the widest there are
    contiguous = max(1.0, min(16 / item, per_thread, cols / 4))
    narrow = 1 + 0.15 * (16 / item - contiguous) / (16 / item)
    waste = (tiles_c * cols / max(1, n)) * (tiles_r * rows / max(1, height))
    short = 1 + 0.2 * max(0.0, 32 / (cols * item) - 1)
    overhead = 1 + 40 / max(1.0, per_thread * item * loads * steps)
    cross = 1 + (0.02 * warps if reduced_rows or t.cols in k.reduced else 0.005 * warps)
    return (
        (1 / max(speed, 1e-3))
        * narrow
        * (0.5 + 0.5 * waste)
        * short
        * overhead
        * cross
        * (1 + spill)
    )

"""Configurations of kernels of ops that are neither fused nor contractions.

Each function returns the model's choice first, then alternatives that autotuning tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.targets import Device
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import TritonConfig

from ....ir.ssa import Body, Op
from ....ir.views import Layout
from ...movement import Unplaced, kernels
from ...registers import HALVES, register_dtype
from ...sizes import cdiv, power_of_two
from ..choice import Way
from .region.block_sizes import busy
from .region.launches import ways_of_kernel

#: elements of a tile of `take`, and source rows in one step of `index_add`
_TILE, _DEPTH = 2048, 8
#: elements of a tile of pooling, and for results too small to keep the device busy with such tiles
_LARGE, _SMALL = 1024, 256

Configs = list[TritonConfig]

#: the kernel that ranks indices by comparing each with all others
ORDERED = [TritonConfig({"ROWS": 32, "COLS": 256}, 4, 1)]


def take_configs(o: Op, body: Body) -> Configs:
    """`take`: tiles of slices × elements of a slice."""
    dim = read(OPS["take"], o.op.attributes)["dim"]
    shape = body.types[o.operands[0]].shape
    rows = prod(shape[:dim]) * body.types[o.operands[1]].numel
    cols = min(power_of_two(prod(shape[dim + 1 :])), 512)
    height = max(1, min(power_of_two(rows), _TILE // cols))
    return [TritonConfig({"ROWS": height, "COLS": cols}, 4, 1)]


def gather_configs(o: Op, body: Body) -> Configs:
    """`gather`: blocks of elements."""
    numel = body.types[o.results[0]].numel
    return [TritonConfig({"BLOCK": min(1024, max(32, power_of_two(numel)))}, 4, 1)]


def index_add_configs(o: Op, body: Body) -> Configs:
    """`index_add`: tiles of rows of the result × elements of a row, and source rows (DEPTH) at a time."""
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    cols = min(power_of_two(prod(body.types[o.operands[0]].shape[dim + 1 :])), 128)
    # with eight elements of a thread no sum goes across warps: 1.9 times as fast on an H200 as with four
    heights = (max(1, 1024 // cols), max(1, 512 // cols))
    return [
        TritonConfig({"ROWS": n, "COLS": cols, "DEPTH": _DEPTH}, 4, 1)
        for n in dict.fromkeys(heights)
    ]


def piece_configs(o: Op, body: Body) -> Configs:
    """Partial sums of `index_add` over pieces of equal indices: elements of a row, source rows (DEPTH) at a time."""
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    cols = min(power_of_two(prod(body.types[o.operands[0]].shape[dim + 1 :])), 256)
    return [TritonConfig({"COLS": cols, "DEPTH": _DEPTH}, 4, 1)]


def index_copy_configs(o: Op, body: Body) -> Configs:
    """`index_copy`: tiles of slices × elements of a slice, and indices checked for duplicates at a time (DEPTH)."""
    dim = read(OPS["index_copy"], o.op.attributes)["dim"]
    shape, count = body.types[o.operands[0]].shape, body.types[o.operands[1]].numel
    rows = prod(shape[:dim]) * count
    cols = min(power_of_two(prod(shape[dim + 1 :])), 512)
    height = max(1, min(power_of_two(rows), _TILE // cols))
    depth = max(1, min(power_of_two(count), _TILE // height))
    return [TritonConfig({"ROWS": height, "COLS": cols, "DEPTH": depth}, 4, 1)]


def put_configs(o: Op, body: Body) -> Configs:
    """`put`: blocks of rows, and the columns that are copied at a time where it does not work in place."""
    rows, columns = body.types[o.operands[0]].shape
    cols = min(power_of_two(columns), 512)
    return [
        TritonConfig({"ROWS": max(1, min(power_of_two(rows), _TILE // cols)), "COLS": cols}, 4, 1)
    ]


def row_configs(rows: int, size: int, tile: int) -> Configs:
    """Kernels over whole rows of `size` elements: as many rows as a tile of `tile` elements holds."""
    cols = max(2, power_of_two(size))
    height = max(1, min(power_of_two(rows), tile // cols))
    return [TritonConfig({"ROWS": height, "COLS": cols}, 4, 1)]


def compared_configs(pieces: int) -> Configs:
    """The second launch of argmax and argmin, which compares the results of the pieces of a row."""
    cols = max(2, power_of_two(pieces))
    return [TritonConfig({"COLS": cols}, max(1, min(4, cols // 128)), 1)]


def pool_configs(o: Op, body: Body, device: Device) -> Configs:
    """Pooling: tiles of positions × channels where channels are last, else blocks of elements."""
    ty, layout = body.types[o.results[0]], read(OPS[o.name], o.op.attributes)["layout"]
    backward, last = o.name.endswith("_grad"), layout == "N*C"
    tile = _LARGE if cdiv(ty.numel, _LARGE) >= busy(device) else _SMALL
    # gradients, and separate addresses of elements, take more registers for each element
    halves = ty.dtype in HALVES  # one access has eight of them
    sums = register_dtype(body.types[o.operands[0]].dtype)
    many = (backward and not halves) or not last or sums in ("f64", "i64")
    tile //= 2 if many else 1
    tiles = [
        (tile, 4 if tile > _SMALL else 2),
        (tile // 2, 4 if tile > _SMALL else 1),
        (2 * tile, 8),
    ]
    if not last:
        return [TritonConfig({"ROWS": n}, warps, 1) for n, warps in tiles]
    cols = min(power_of_two(ty.shape[conv_dims(layout, ty.rank)[1]]), 128)
    return [TritonConfig({"ROWS": max(1, n // cols), "COLS": cols}, warps, 1) for n, warps in tiles]


def movement_ways(o: Op, body: Body, at: Sequence[Layout], device: Device) -> list[Way]:
    """The launch parameters of the copies of a data-movement op."""
    made = kernels(Unplaced(body, at), o)
    return [w for m in made for w in ways_of_kernel(m.k, len(m.sources), 1, device)]

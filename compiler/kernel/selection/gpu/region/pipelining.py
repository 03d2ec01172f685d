"""How many tiles of a loop are on their way at once.

    for rows_start in tl.range(low, high, ROWS, num_stages=3):    two tiles are loaded while a third is added up

Left alone, the compiler of machine code waits for each tile before it asks for the next one, to save registers. Tiles
on their way lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.targets import Device
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ....sizes import cdiv
from ...choice import WARP
from .tiling import Tiling

#: most stages
_MOST = 4
#: a loop of fewer steps has nothing to overlap
_STEPS = 2


def modelled_stages(
    k: Kernel, t: Tiling, configs: Sequence[TritonConfig], chunk: int, device: Device
) -> int:
    """The stages of a kernel's inner loop; 1 if its tiles come one by one, 0 without a loop.

    configs: ways to run it. chunk: how much of the looped axis a program takes; 0 for all of it.
    """
    if not t.axis:
        return 0
    which = "COLS" if t.loop_cols else "ROWS"
    looped = {t.cols} if t.loop_cols else set(t.rows)
    sizes = [_tile(k, t, c, looped, device) for c in configs]
    length = chunk or prod(k.sizes[d] for d in looped)
    if not sizes[0] or length < _STEPS * configs[0].constants[which]:
        return 1
    wanted = 1 + cdiv(device.in_flight * WARP * configs[0].num_warps, sizes[0])
    return min(_MOST, wanted, 1 + device.ahead // max(sizes))


def _tile(k: Kernel, t: Tiling, config: TritonConfig, looped: set[int], device: Device) -> int:
    """Bytes that one step of the loop loads; 0 if not by whole vectors, whose addresses would take registers."""
    axes = (("ROWS", set(t.rows)), ("COLS", {t.cols}))
    total = 0
    for a in k.loads:
        walked = {d for d, s in enumerate(a.strides) if s}
        if walked & looped:
            count = prod(config.constants.get(block, 1) for block, dims in axes if dims & walked)
            item = TensorType((), a.dtype).itemsize
            if any(s != 1 and s * item % device.access for s in a.strides):
                return 0
            total += count * item
    return total

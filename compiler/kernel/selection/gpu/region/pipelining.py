"""The pipeline stages of a kernel's loop: how many tiles are in flight.

    for rows_start in tl.range(low, high, ROWS, num_stages=3):    two tiles are loaded while a third is accumulated

Without stages, the assembler (ptxas) waits for each tile before it loads the next one, to save registers. Tiles in
flight are in shared memory.
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

#: the most stages
_MOST = 4
#: loops of fewer steps are not pipelined
_STEPS = 2


def modelled_stages(
    k: Kernel, t: Tiling, configs: Sequence[TritonConfig], chunk: int, device: Device
) -> int:
    """The pipeline stages of a kernel's inner loop; 1: not pipelined, 0: no loop.

    configs: its configurations. chunk: the part of the looped axis that a program processes; 0: all of it.
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
    """The bytes that a step of the loop loads; 0 if some load isn't vectorized, as its addresses need registers."""
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

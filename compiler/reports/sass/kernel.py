"""A compiled kernel on a device: its resident blocks per multiprocessor, and a model of its loops' times."""

from __future__ import annotations

from collections.abc import Mapping

from gflow.compiler.kernel.sizes import cdiv
from gflow.compiler.targets import Device
from gflow.compiler.targets.pipes import pipes_of
from gflow.dialects.program import DeviceCode
from gflow.dialects.program.form import unpacked
from gflow.dialects.records import record

from .instructions import Code, disassembled, parsed
from .loop_time import LoopTime, loop_time

#: bytes of shared memory that the system reserves per block, and the allocation granularity of a warp's registers
_RESERVED, _GRANULE = 1024, 256


@record
class KernelTime:
    """The model's times of a kernel.

    blocks: resident blocks per multiprocessor, at most those that the launch has. waves: how many times the launch
    fills the device. loops: the innermost ones, in code order."""

    blocks: int
    waves: float
    loops: tuple[LoopTime, ...]

    @property
    def main(self) -> LoopTime | None:
        """The main loop: of the loops with the most products the one with the fewest instructions, which has no masks
        and runs for most iterations; without products the slowest one."""
        most = max((time.tensor for time in self.loops), default=0.0)
        if not most:
            return max(self.loops, key=lambda time: time.cycles, default=None)
        found = [time for time in self.loops if time.tensor == most]
        return min(found, key=lambda time: time.instructions)


def resident(code: DeviceCode, device: Device) -> int:
    """The resident blocks of a kernel per multiprocessor, by its registers, shared memory, warps and number of
    blocks."""
    of_warp = cdiv(max(code.registers, 16) * device.warp, _GRANULE) * _GRANULE
    warps = min(device.warps, device.registers // of_warp)
    shared = (device.shared_memory + _RESERVED) // (code.shared + _RESERVED)
    return min(warps // code.warps, device.blocks, shared)


def kernel_time(
    code: DeviceCode, device: Device, programs: int, constants: Mapping[str, int], item: int = 2
) -> KernelTime | None:
    """The model's times of a kernel's loops; None if `gflow.compiler.targets.pipes` has no row for the device.

    Args:
        programs: the number of programs of the launch.
        constants: of the kernel's config; `BLOCK_M`, `BLOCK_N` and `BLOCK_K` give the bytes of bulk copies.
        item: bytes per element of the operands.

    Raises:
        RuntimeError: the code cannot be disassembled.
    """
    pipes = pipes_of(device)
    if pipes is None:
        return None
    found = parsed(disassembled(unpacked(code.image), encodings=True))
    held = resident(code, device)
    blocks = max(1, min(held, cdiv(programs, device.multiprocessors)))
    times = []
    for first, last in found.loops():
        bulk = _bulk(found, first, last, constants, item)
        times.append(loop_time(found.body(first, last), code.warps, blocks, device, pipes, bulk))
    waves = programs / (device.multiprocessors * max(held, 1))
    return KernelTime(blocks, waves, tuple(times))


def _bulk(code: Code, first: int, last: int, constants: Mapping[str, int], item: int) -> int:
    """The bytes that an iteration of a product's loop loads by bulk copies."""
    copies = any(i.kind in ("UTMALDG", "UBLKCP") for i in code.body(first, last))
    if not copies or "BLOCK_K" not in constants:
        return 0
    columns = constants["BLOCK_N"] + constants.get("REST", 0)
    return (constants["BLOCK_M"] + columns) * constants["BLOCK_K"] * item

"""The launches of a program: their arguments, as the driver takes them.

Each argument is a word of 8 bytes; those that are addresses in the arena, of arguments or of results are
patched when these move, all others are written once.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import torch

from gflow.dialects.program import LaunchStep, Place, Program

from ..cpu.table import FixedAddress
from .device import Device, DeviceError, Launch

_FORMATS = {
    "i1": "<?", "u1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
    "i64": "<q", "u64": "<Q", "fp16": "<e", "fp32": "<f", "fp64": "<d",
}  # fmt: skip
#: words that Triton adds: scratch of the kernel, scratch of a profiler
_EXTRA = 2


class LaunchTable:
    """A program's launches, in order."""

    def __init__(self, program: Program, device: Device, fixed: FixedAddress) -> None:
        """
        Args:
            fixed: the address of a place that never moves; None for the others.

        Raises:
            DeviceError: code of a launch is missing.
        """
        steps = [s for s in program.steps if isinstance(s, LaunchStep)]
        count = sum(len(s.args) + _EXTRA for s in steps)
        self._words = np.zeros(1 + count, dtype=np.int64)
        first = self._words.ctypes.data
        self._parameters = np.arange(first, first + 8 * (1 + count), 8, dtype=np.int64)
        self._scratch = _scratch(program, steps, device)
        self.launches: list[Launch] = []
        functions: dict[str, object] = {}
        spots: dict[tuple[str, int], list[tuple[int, int]]] = {}
        used = 0
        for step in steps:
            kernel, key = program.triton[step.kernel], f"{step.kernel}/{step.config}"
            if key not in functions:
                functions[key] = device.load(kernel, step.config, program.device_code.get(key))
            words = self._words[used : used + len(step.args) + _EXTRA]
            kinds = kernel.parameters.values()
            for n, (kind, value) in enumerate(zip(kinds, step.args, strict=True)):
                if not isinstance(value, Place):
                    words[n] = _word(kind, value)
                elif (address := fixed(value)) is not None:
                    words[n] = address
                else:
                    spots.setdefault((value.space, value.index), []).append(
                        (used + n, value.offset)
                    )
            words[-_EXTRA] = self._scratch.data_ptr() if self._scratch is not None else 0
            parameters = self._parameters.ctypes.data + 8 * used
            self.launches.append(Launch(step, kernel, functions[key], words, parameters))
            used += len(words)
        self._patches = {
            key: (np.array([w for w, _ in found]), np.array([o for _, o in found], dtype=np.int64))
            for key, found in spots.items()
        }

    def patch(self, space: str, index: int, address: int) -> None:
        """Set the address of the arena, or of argument or result number `index`."""
        found = self._patches.get((space, index))
        if found is not None:
            self._words[found[0]] = address + found[1]

    def used(self, space: str, index: int) -> bool:
        """Whether a launch has an address in there."""
        return (space, index) in self._patches


def _word(kind: str, value: int | float) -> int:
    """A number as the bytes of a parameter, in a word."""
    if kind not in _FORMATS:
        raise DeviceError(f"a launch gives a number for a parameter of type {kind}")
    number = float(value) if kind.startswith("fp") else int(value)
    raw = struct.pack(_FORMATS[kind], number).ljust(8, b"\0")
    return int.from_bytes(raw, "little", signed=True)


def _scratch(program: Program, steps: list[LaunchStep], device: Device) -> torch.Tensor | None:
    """Memory that kernels want for themselves; launches run one after the other and share it."""
    size = 0
    for step in steps:
        code = program.device_code.get(f"{step.kernel}/{step.config}")
        if code is not None:
            size = max(size, code.scratch * math.prod(step.grid))
    return torch.empty(size, dtype=torch.uint8, device=device.where) if size else None

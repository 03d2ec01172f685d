"""What checks of a program report, and when the host looks: behind the steps, or, where a device runs on by itself,
at the next call, without waiting.

The report lies in memory of the host that the device can write to; only a check that fails does.
"""

from __future__ import annotations

import torch

from gflow.dialects.program import Place, Program

from .device import Device, Span
from .failures import CALL, FAILED, FOUND, REPORT_WORDS, raise_failed


class CheckReport:
    """The report of an executable's checks, and a counter of runs for each on the device."""

    def __init__(self, program: Program, device: Device) -> None:
        self.checks, self.device = program.checks, device
        words = torch.zeros(REPORT_WORDS, dtype=torch.int64)
        self._report = device.report(REPORT_WORDS) if self.checks else words
        self._words = self._report.numpy()
        self._runs = torch.zeros(len(self.checks), dtype=torch.int64, device=device.where)

    def address(self, place: Place) -> int:
        """Of a place in "status"."""
        return (self._report, self._runs)[place.index].data_ptr() + place.offset

    def spans(self) -> list[Span]:
        """The memory that checks may touch."""
        if not self.checks:
            return []
        memory = (self._report, self._runs)
        return [Span("status", i, t.data_ptr(), t.nbytes) for i, t in enumerate(memory)]

    def look(self, at_once: bool = False) -> None:
        """Raise what has been reported by now, if anything, once. at_once: nothing came after the check."""
        if not self.checks or not self._words[FAILED]:
            return
        self.device.synchronize()  # all words are there
        failed, found, call = (int(self._words[i]) for i in (FAILED, FOUND, CALL))
        self._words[:] = 0
        note = (
            f"  in run {call} of this program on the device, which the host does not wait for: that run's updates "
            "are applied, and so are those of later ones. GFLOW_CUDA_SYNC=1 in the environment raises it in the call"
        )
        raise_failed(self.checks[failed - 1], found, "" if at_once else note)

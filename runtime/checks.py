"""The report of a program's checks (`gflow.check`), and when the host reads it: after the steps, or, on an asynchronous
device, at the next call, without waiting.

The report is host memory that the device can write to. Only a check that fails writes to it.
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
        words = torch.zeros(REPORT_WORDS, dtype=torch.int64, device="cpu")
        self._report = device.report(REPORT_WORDS) if self.checks else words
        self._words = self._report.numpy()
        self._runs = torch.zeros(len(self.checks), dtype=torch.int64, device=device.where)

    def address(self, place: Place) -> int:
        """The address of a place in the space "status"."""
        return (self._report, self._runs)[place.index].data_ptr() + place.offset

    def spans(self) -> list[Span]:
        """The memory that checks may write to."""
        if not self.checks:
            return []
        memory = (self._report, self._runs)
        return [Span("status", i, t.data_ptr(), t.nbytes) for i, t in enumerate(memory)]

    def look(self, at_once: bool = False) -> None:
        """Raise the reported error, if there is one, once. at_once: no later step has run."""
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

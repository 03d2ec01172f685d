"""Peak memory of a piece of work, as Linux accounts it for this process (no GPU memory).

Only the process's own (anonymous) pages count: the pages of shared libraries that happen to be
mapped are code, shared between processes, and do not belong to a training step.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

MIB = 1 << 20


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {field}")


def release_unused() -> None:
    """Gives back what is freed but still held: garbage cycles and the C allocator's free pages."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Bytes of this process's own in memory now."""
    return _status("RssAnon")


def peak() -> int:
    """The most bytes of this process's own in memory at once since `reset_peak`.

    Linux keeps the peak of all pages; mapped files only grow, so what is mapped now is taken off.
    """
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")

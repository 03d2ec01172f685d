"""Blocks of memory on huge pages, where the kernel of the operating system offers them.

A step goes through its whole arena several times. Pages of 4 KiB cost misses of the translation buffer, and a fault for
each page of a first step. Linux gives pages of 2 MiB to a process that asks for them (`madvise`); elsewhere a block has
ordinary pages.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

import torch

PAGE = 2 << 20  #: bytes of a huge page on x86 and on ARM with pages of 4 KiB
#: bytes from which on a block is aligned to huge pages
LARGE = 2 * PAGE
_OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def block(nbytes: int) -> torch.Tensor:
    """Uninitialized bytes on the CPU: a 1-d uint8 tensor of `nbytes`. A large one begins at a huge page, and its whole
    pages are asked for as huge ones; so no more memory is resident than without them."""
    ask = _ask() if nbytes >= LARGE else None
    if ask is None:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    room = torch.empty(
        nbytes + PAGE, dtype=torch.uint8
    )  # pages that nothing writes to take no memory
    start = -room.data_ptr() % PAGE
    found = room[start : start + nbytes]
    ask(found.data_ptr(), nbytes // PAGE * PAGE)
    return found


@functools.cache
def _ask() -> Callable[[int, int], None] | None:
    """A function that asks for huge pages from an address on, for a number of bytes; None where there are none."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it
    try:
        offered = _OFFERED.read_text()
    except OSError:
        return None
    if advice is None or "[never]" in offered:
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def ask(address: int, nbytes: int) -> None:
        madvise(address, nbytes, advice)  # a kernel that refuses leaves ordinary pages

    return ask

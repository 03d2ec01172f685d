"""Pauses Python's cyclic garbage collector during compilation.

Tracing and compiling create many small objects and few cycles. The collector would repeatedly walk all live objects,
including those of libraries, which takes a twentieth of a first call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector within, if it is on."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

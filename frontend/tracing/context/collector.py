"""Python's cyclic garbage collector, out of the way of compilation.

Tracing and compiling make many small objects and few cycles. The collector would walk all that is
alive, the libraries' own objects too, again and again: a twentieth of a first call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Leave cyclic garbage alone until the end, if the collector is on."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

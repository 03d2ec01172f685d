"""Expensive values of a row, which are kept in the thread's scratch between passes over the row.

A softmax needs exp(x - max) for its sum and again for its result. The first pass stores it, and the next one reads it
from the core's own cache.
"""

from __future__ import annotations

from . import scalars as sc
from .writer import Writer


def _address(w: Writer, i: int) -> tuple[str, str, int]:
    """The address, type and alignment of the kept value of node `i` at the current position."""
    p = w.p
    flat = None
    for d in (*p.reduced, p.vector):
        flat = w.iv[d] if flat is None else w.add(w.mul(flat, w.size(d)), w.iv[d])
    reg = sc.register_dtype(w.k.nodes[i].dtype)
    base = w.env[-1 - i, 0, -1]
    at = w(f"llvm.getelementptr {base}[{flat}] : (!llvm.ptr, i64) -> !llvm.ptr, {reg}")
    return at, f"vector<{w.lanes}x{reg}>", 8 if reg.endswith("64") else 4


def prepare(w: Writer) -> None:
    """Write the base address of each kept value for this thread, once in a kernel."""
    p = w.p
    if not p.cached:
        return
    tid = w.thread("thread_num")
    for n, i in enumerate(p.cached):
        cell = w.add(w.mul(tid, w.i64(len(p.cached))), w.i64(n))
        offset = w.mul(cell, w.word("row"))
        w.env[-1 - i, 0, -1] = w(
            f"llvm.getelementptr {w.word('scratch')}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i64"
        )


def store(w: Writer, i: int, name: str) -> None:
    """Store a vector of node `i`. Lanes beyond the row are stored, too: they are padding, or are overwritten later."""
    at, ty, align = _address(w, i)
    w.write(name, at, ty, align, None)


def load(w: Writer, i: int) -> str:
    """Load the vector of node `i` that was kept for the current position."""
    at, ty, align = _address(w, i)
    return w.read(at, ty, align, None)

"""Expensive values of a row, kept between the passes over it in scratch memory of the thread.

A softmax needs exp(x - max) for its sum and again for its result: the first pass that computes it leaves it
here, and the next reads it from the core's own cache.
"""

from __future__ import annotations

from . import scalars as sc
from .writer import Writer


def _address(w: Writer, i: int) -> tuple[str, str, int]:
    """The place of node `i` at the current position of the row: address, type, alignment."""
    p = w.p
    flat = None
    for d in (*p.reduced, p.vector):
        flat = w.iv[d] if flat is None else w.add(w.mul(flat, w.size(d)), w.iv[d])
    reg = sc.register_dtype(w.k.nodes[i].dtype)
    base = w.env[-1 - i, 0, -1]
    at = w(f"llvm.getelementptr {base}[{flat}] : (!llvm.ptr, i64) -> !llvm.ptr, {reg}")
    return at, f"vector<{w.lanes}x{reg}>", 8 if reg.endswith("64") else 4


def prepare(w: Writer) -> None:
    """The base address of each kept value for this thread, once in a kernel."""
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
    """Keep a vector. Lanes beyond the row are written too: what lies there is written later or is padding."""
    at, ty, align = _address(w, i)
    w.write(name, at, ty, align, None)


def load(w: Writer, i: int) -> str:
    """The vector of node `i` that was kept for the present position of the row."""
    at, ty, align = _address(w, i)
    return w.read(at, ty, align, None)

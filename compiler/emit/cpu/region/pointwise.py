"""Kernels without reductions: loops over outer dimensions, then vectors. Threads share the outer loops, or vectors."""

from __future__ import annotations

from collections.abc import Callable

from ..language.expressions import hoist, write_stores
from ..language.memory import load_address, read, storage
from ..language.transpose import SIDE, WORDS, transposed
from ..language.writer import Writer

#: a thread's share of the vectorized dimension is a multiple of so many elements
GRANULE = 64

#: positions along the dimension before the vectorized one that are transposed at a time. Stores must reach the cache
#: before wider loads read them (no store forwarding)
_BLOCK = 64


def write_scalar(w: Writer) -> None:
    """Write the body of a kernel over a single position."""
    write_stores(w, range(len(w.k.stores)), 0)


def write_pointwise(w: Writer) -> None:
    """Write the body of a kernel without reductions: loops over the index space, vectors along the inner dimension."""
    p = w.p
    hoist(w, 0, set())
    every = range(len(w.k.stores))

    def store(_: list[str]) -> list[str]:
        write_stores(w, every, w.lanes)
        return []

    def piece(low: str, high: str) -> None:
        hoist(w, 0, set(p.outer))
        w.vectors(low, high, [], store)

    if p.turned:
        _write_turned(w, store)
        return
    size = w.size(p.vector)
    if not p.outer:
        piece(*w.share(size, GRANULE))
        return
    if p.split:
        share, outer = w.share(size, GRANULE), (w.i64(0), w.product(p.outer))
    else:
        share, outer = (w.i64(0), size), w.share(w.product(p.outer))

    def step(flat: str) -> None:
        w.set_position(p.outer, flat)
        piece(*share)

    w.repeat(*outer, step)


def _write_turned(w: Writer, store: Callable[[list[str]], list[str]]) -> None:
    """Write the body of a pointwise kernel with transposed loads.

    The inner two dimensions are flattened into one and processed in blocks, which threads share. Loads that have the
    other dimension order are transposed into a buffer first.
    """
    p, (*lead, before) = w.p, w.p.outer
    count = w.i64((_BLOCK + 1) * SIDE)
    buffers = {
        i: w(f"llvm.alloca {count} x f32 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
        for i in p.turned
    }
    blocks = w.granules(w.size(before), _BLOCK)

    def step(flat: str) -> None:
        outer, block = w.split(flat, blocks)
        w.set_position(tuple(lead), outer)
        hoist(w, 0, set(lead))
        first = w.mul(block, _BLOCK)
        there = w.at_most(w.sub(w.size(before), first), _BLOCK)
        w.iv[before], w.iv[p.vector] = first, w.i64(0)
        for i, buffer in buffers.items():
            _turn(w, i, buffer, there)
            w.turned[i] = buffer
        w.vectors(w.i64(0), w.mul(there, w.size(p.vector)), [], store)

    w.repeat(*w.share(w.mul(w.product(lead), blocks)), step)


def _turn(w: Writer, i: int, buffer: str, count: str) -> None:
    """Write the transposition of a block of load `i` into `buffer` as float32, from the writer's position on.

    Rows are shorter than the 16 lanes that are stored; each row overwrites the unused lanes of the one before.
    """
    start, size = load_address(w, i), w.size(w.p.vector)
    apart, last = w.word("lstride", i, w.p.vector), w.sub(size, 1)
    dtype = w.k.loads[i].dtype

    def at(base: str, offset: str, element: str) -> str:
        return w(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {element}")

    def some(j: str) -> None:
        inside = w.first_lanes(w.at_most(w.sub(count, j), SIDE), SIDE)
        rows = []
        for n in range(SIDE):
            offset = w.add(w.mul(w.at_most(w.i64(n), last), apart), j)
            row = read(w, at(start, offset, storage(dtype)), dtype, SIDE, inside)
            rows.append(w(f"vector.bitcast {row} : vector<{SIDE}xf32> to {WORDS}"))
        for n, row in enumerate(transposed(w, rows)):
            w.write(row, at(buffer, w.mul(w.add(j, n), size), "f32"), WORDS, 4, None)

    w.repeat(w.i64(0), count, some, w.i64(SIDE))

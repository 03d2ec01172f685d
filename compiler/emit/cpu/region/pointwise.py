"""Kernels without reductions: outer dimensions, then vectors; threads share the outer ones, or the vectors."""

from __future__ import annotations

from ..language.expressions import hoist, write_stores
from ..language.writer import Writer

#: elements that one thread's share is a multiple of
GRANULE = 64


def write_scalar(w: Writer) -> None:
    """A kernel over one position."""
    write_stores(w, range(len(w.k.stores)), 0)


def write_pointwise(w: Writer) -> None:
    """The body of a kernel without reductions: loops over the index space, vectors along the inner one."""
    p = w.p
    hoist(w, 0, set())
    every = range(len(w.k.stores))

    def store(_: list[str]) -> list[str]:
        write_stores(w, every, w.lanes)
        return []

    def piece(low: str, high: str) -> None:
        hoist(w, 0, set(p.outer))
        w.vectors(low, high, [], store)

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

"""Reductions whose vectors run along a reduced dimension: softmax, layer norm, sums of rows.

    outer dimensions (threads) · for each level of reductions a pass over the row · a last pass that stores

With few rows, threads share each row, store partial results in scratch, and combine them after a barrier.
"""

from __future__ import annotations

from ..language import row_cache
from ..language.expressions import hoist, write_stores
from ..language.parameters import BLOCK
from ..language.writer import Carried, Writer
from .pointwise import GRANULE
from .reductions import (
    across,
    blocks,
    cell,
    finish,
    fold,
    get,
    kept,
    levels,
    merge,
    of_level,
    put,
    spanning,
    starts,
    stores_at,
)


def _pass(
    w: Writer, reds: list[int], stores: list[int], bounds: tuple[str, str] | None = None
) -> list[str]:
    """The reductions `reds` over the row, as scalars, and the stores `stores`. bounds: limits of the outermost loop."""
    p, lanes = w.p, w.lanes
    whole_row = (w.i64(0), w.size(p.vector))

    def at_vector(carried: list[str]) -> list[str]:
        out = fold(w, reds, carried, lanes)
        write_stores(w, stores, lanes)
        return out

    inits = starts(w, reds, lanes)

    def stretch(part: tuple[str, str], start: Carried) -> list[str]:
        return w.vectors(*part, start, at_vector)

    def along(part: tuple[str, str], totals: list[str]) -> list[str]:
        carried = [(t, ty) for t, (_, ty) in zip(totals, inits)]
        return blocks(w, part, BLOCK * lanes, reds, carried, stretch)

    if p.reduced:
        vectors = w.nest(p.reduced, inits, lambda totals: along(whole_row, totals), bounds)
    else:
        vectors = along(bounds or whole_row, [name for name, _ in inits])
    return [across(w, r, v, lanes) for r, v in zip(reds, vectors)]


def _sweep(w: Writer, stores: list[int]) -> None:
    """Write the last pass, which only stores."""

    def store(_: list[str]) -> list[str]:
        write_stores(w, stores, w.lanes)
        return []

    def inside(_: list[str]) -> list[str]:
        everything = (w.i64(0), w.size(w.p.vector))
        w.vectors(*everything, [], store)
        return []

    w.nest(w.p.reduced, [], inside)


def write_row(w: Writer) -> None:
    """Write the body of a "row" kernel: one row at a time, with one pass for each level of reductions."""
    p = w.p
    hoist(w, 0, set())
    if p.split:
        _write_split(w)
        return
    row_cache.prepare(w)
    deepest = levels(w)

    def piece(flat: str) -> None:
        w.set_position(p.outer, flat)
        available = set(p.outer)
        hoist(w, 0, available)
        for level in range(1, deepest + 1):
            w.phase = level
            reds = of_level(w, level)
            finish(w, reds, _pass(w, reds, stores_at(w, level)), 0)
            hoist(w, level, available)
        w.phase = deepest + 1
        late = stores_at(w, deepest + 1)
        if late:
            _sweep(w, late)
        write_stores(w, kept(w), 0)

    w.repeat(*w.share(w.product(p.outer)), piece)


def _write_split(w: Writer) -> None:
    p, reds, one = w.p, of_level(w), w.i64(1)
    first = p.reduced[0] if p.reduced else p.vector
    bounds = w.share(w.size(first), 1 if p.reduced else GRANULE)
    tid, total = w.thread("thread_num"), w.product(p.outer)

    def partial(flat: str) -> None:
        w.set_position(p.outer, flat)
        hoist(w, 0, set(p.outer))
        for m, (r, name) in enumerate(zip(reds, _pass(w, reds, spanning(w), bounds))):
            put(w, cell(w, tid, m, total, flat), name, r, 0)

    w.repeat(w.i64(0), total, partial)
    w.barrier()
    threads = w.thread("num_threads")

    def combine(flat: str) -> None:
        w.set_position(p.outer, flat)

        def add(t: str, carried: list[str]) -> list[str]:
            parts = [get(w, cell(w, t, m, total, flat), r, 0) for m, r in enumerate(reds)]
            return merge(w, reds, carried, parts, 0)

        finish(w, reds, w.walk(w.i64(0), threads, one, starts(w, reds, 0), add), 0)
        write_stores(w, kept(w), 0)

    w.repeat(*w.share(total), combine)

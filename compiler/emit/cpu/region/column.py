"""Reductions whose vectors run along a kept dimension: batch norm statistics, gradients of biases, short rows.

    outer dimensions and tiles of vectors (threads) · for each level of reductions a pass over the reduced
    dimensions with accumulators in registers · a last pass that stores

With few tiles, threads share the reduced dimensions, store partial results in scratch, and combine them after a
barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from ..language.expressions import hoist, needed, write_stores
from ..language.parameters import BLOCK
from ..language.writer import Carried, Writer
from .reductions import (
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


class _Tile:
    """`unroll` vectors side by side from position `start` of the vectorized dimension."""

    def __init__(self, w: Writer, start: str, unroll: int) -> None:
        self.w, self.unroll = w, unroll
        self.starts = [w.add(start, w.i64(u * w.lanes)) if u else start for u in range(unroll)]

    def each(self, body: Callable[[int], None]) -> None:
        """Call `body` for every vector of the tile."""
        w = self.w
        for u, start in enumerate(self.starts):
            w.position, w.iv[w.p.vector] = u, start
            body(u)
        w.position = 0

    def finish(self, reds: list[int], values: list[str]) -> None:
        """Define the values of reductions; `values` has all vectors of the first reduction, then of the second, …"""
        n = self.unroll
        self.each(lambda u: finish(self.w, reds, values[u::n], self.w.lanes))

    def hoist(self, depth: int, reds: list[int], stores: list[int]) -> None:
        """Write the values that the following loops need and that do not vary along the reduced dimensions."""
        w = self.w
        values = [w.k.stores[s].node for s in stores]
        only = needed(w, [*(a for r in reds for a in w.k.nodes[r].args), *values])
        hoist(w, depth, set(w.p.outer), only=only)
        available = {*w.p.outer, w.p.vector}
        self.each(lambda _: hoist(w, depth, available, w.lanes, only))

    def reduce(
        self, reds: list[int], stores: list[int], bounds: tuple[str, str] | None = None
    ) -> list[str]:
        """The reductions `reds` over the reduced dimensions. bounds: limits of the outermost one."""
        w, n = self.w, self.unroll
        *outer, last = w.p.reduced
        inits = [x for x in starts(w, reds, w.lanes) for _ in range(n)]

        def point(carried: list[str]) -> list[str]:
            out: list[list[str]] = []

            def one(u: int) -> None:
                out.append(fold(w, reds, carried[u::n], w.lanes))
                write_stores(w, stores, w.lanes)

            self.each(one)
            return [out[u][m] for m in range(len(reds)) for u in range(n)]

        def stretch(part: tuple[str, str], carried: Carried) -> list[str]:
            return w.nest((last,), carried, point, part)

        every = [r for r in reds for _ in range(n)]

        def along(part: tuple[str, str], totals: list[str]) -> list[str]:
            carried = [(t, ty) for t, (_, ty) in zip(totals, inits)]
            return blocks(w, part, BLOCK, every, carried, stretch)

        whole = (w.i64(0), w.size(last))
        if outer:
            return w.nest(tuple(outer), inits, lambda totals: along(whole, totals), bounds)
        return along(bounds or whole, [name for name, _ in inits])

    def sweep(self, stores: list[int]) -> None:
        """The last pass, which only stores."""
        w = self.w

        def point(_: list[str]) -> list[str]:
            self.each(lambda _: write_stores(w, stores, w.lanes))
            return []

        w.nest(w.p.reduced, [], point)


def _cover(w: Writer, start: str, body: Callable[[_Tile], None]) -> None:
    """Call `body` for one tile from position `start` of the vectorized dimension.

    An incomplete tile at the end is processed one vector at a time.
    """
    if w.p.tiled == "all":
        body(_Tile(w, start, w.p.unroll))
        return
    size, lanes = w.size(w.p.vector), w.lanes
    length = w.i64(w.p.unroll * lanes)
    end = w.at_most(w.add(start, length), size)

    def single(iv: str) -> None:
        w.mask = w.first_lanes(w.sub(size, iv), w.lanes)
        body(_Tile(w, iv, 1))

    if w.p.tiled == "none":
        w.repeat(start, end, single, w.i64(lanes))
        return
    whole = w(f"arith.cmpi eq, {w.sub(end, start)}, {length} : i64")

    def unrolled() -> list[str]:
        body(_Tile(w, start, w.p.unroll))
        return []

    w.when(whole, [], unrolled)
    rest = w(f"arith.select {whole}, {end}, {start} : i64")
    w.repeat(rest, end, single, w.i64(lanes))


def write_column(w: Writer) -> None:
    """Write the body of a "column" kernel: vectors along a kept dimension, an accumulator for each column."""
    p = w.p
    hoist(w, 0, set())
    if p.split:
        _write_split(w)
        return
    length = w.i64(p.unroll * w.lanes)
    tiles = w.granules(w.size(p.vector), p.unroll * w.lanes)
    deepest = levels(w)

    def body(tile: _Tile) -> None:
        for level in range(1, deepest + 1):
            reds, stores = of_level(w, level), stores_at(w, level)
            tile.hoist(level - 1, reds, stores)
            tile.finish(reds, tile.reduce(reds, stores))
        late = stores_at(w, deepest + 1)
        if late:
            tile.hoist(deepest, [], late)
            tile.sweep(late)
        tile.each(lambda _: write_stores(w, kept(w), w.lanes))

    def work(flat: str) -> None:
        start = w.mul(w(f"arith.remui {flat}, {tiles} : i64"), length)
        w.set_position(p.outer, w(f"arith.divui {flat}, {tiles} : i64"))
        _cover(w, start, body)

    w.repeat(*w.share(w.mul(w.product(p.outer), tiles)), work)


def _write_split(w: Writer) -> None:
    p, lanes, reds = w.p, w.lanes, of_level(w)
    size, outer = w.size(p.vector), w.product(p.outer)
    width = w.mul(outer, size)
    bounds = w.share(w.size(p.reduced[0]))
    tid = w.thread("thread_num")

    def partial(flat: str) -> None:
        w.set_position(p.outer, flat)
        row = w.mul(flat, size)

        def body(tile: _Tile) -> None:
            tile.hoist(0, reds, spanning(w))
            values = tile.reduce(reds, spanning(w), bounds)

            def leave(u: int) -> None:
                at = w.add(row, tile.starts[u])
                for m, r in enumerate(reds):
                    put(w, cell(w, tid, m, width, at), values[m * tile.unroll + u], r, lanes)

            tile.each(leave)

        w.repeat(w.i64(0), size, lambda iv: _cover(w, iv, body), w.i64(p.unroll * lanes))

    w.repeat(w.i64(0), outer, partial)
    w.barrier()
    threads = w.thread("num_threads")
    low, high = w.share(size, lanes)

    def combine(flat: str) -> None:
        w.set_position(p.outer, flat)
        row = w.mul(flat, size)

        def vector(iv: str) -> None:
            w.mask = w.first_lanes(w.sub(size, iv), w.lanes)
            at = w.add(row, iv)

            def add(t: str, carried: list[str]) -> list[str]:
                parts = [get(w, cell(w, t, m, width, at), r, lanes) for m, r in enumerate(reds)]
                return merge(w, reds, carried, parts, lanes)

            tile = _Tile(w, iv, 1)
            values = w.walk(w.i64(0), threads, w.i64(1), starts(w, reds, lanes), add)
            tile.finish(reds, values)
            tile.each(lambda _: write_stores(w, kept(w), lanes))

        w.repeat(low, high, vector, w.i64(lanes))

    w.repeat(w.i64(0), outer, combine)

"""Strategies of arena allocation. Sizes and offsets are in bytes.

    timeline     allocate and free as the program runs; each buffer takes the smallest free block
                 that it fits
    skyline      fill the arena from below: at its lowest place, the buffer that lives longest among
                 those that fit there in time (Sekiyama et al., 2018)
    size         largest first, each at the lowest offset that is free during its life
    lifetime     the same, longest life first
    volume       the same, largest product of size and life first
    best-fit     as `size`, each in the smallest gap that it fits

No strategy is the best for all programs. `timeline` and `skyline` take O(n log n) time. The others compare each buffer
with all placed ones, in NumPy.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import numpy as np

from gflow.compiler.memory.liveness import Buffer

#: the arena's size, and an offset for each buffer
Offsets = tuple[int, list[int]]


def without_reuse(buffers: Sequence[Buffer]) -> Offsets:
    """No two buffers share bytes."""
    offsets = [0, *accumulate(b.size for b in buffers)]
    return offsets.pop(), offsets


def timeline(buffers: Sequence[Buffer]) -> Offsets:
    """Allocate and free in program order, best fit. Adjacent free blocks are merged."""
    free: list[tuple[int, int]] = []  # (size, offset), sorted
    at_start: dict[int, int] = {}  # offset → size
    at_end: dict[int, int] = {}  # offset of the end → size
    top = 0
    offsets = [0] * len(buffers)

    def add(offset: int, size: int) -> None:
        insort(free, (size, offset))
        at_start[offset] = at_end[offset + size] = size

    def remove(offset: int, size: int) -> None:
        del free[bisect_left(free, (size, offset))], at_start[offset], at_end[offset + size]

    ends = sorted(range(len(buffers)), key=lambda i: buffers[i].end)
    done = 0
    for i in sorted(range(len(buffers)), key=lambda i: (buffers[i].start, -buffers[i].size)):
        while done < len(ends) and buffers[ends[done]].end < buffers[i].start:
            offset, size = offsets[ends[done]], buffers[ends[done]].size
            done += 1
            if before := at_end.get(offset):
                remove(offset - before, before)
                offset, size = offset - before, size + before
            if after := at_start.get(offset + size):
                remove(offset + size, after)
                size += after
            add(offset, size)
        size = buffers[i].size
        n = bisect_left(free, (size, 0))
        if n < len(free):
            block, offset = free[n]
            remove(offset, block)
            if block > size:
                add(offset + size, block - size)
        elif last := at_end.get(top):  # grow the last free block
            offset = top - last
            remove(offset, last)
            top = offset + size
        else:
            offset, top = top, top + size
        offsets[i] = offset
    return top, offsets


def skyline(buffers: Sequence[Buffer]) -> Offsets:
    """Best fit by lifetime: the lowest stretch of time gets the longest-lived buffer that fits within it."""
    if not buffers:
        return 0, []
    order = sorted(range(len(buffers)), key=lambda i: (buffers[i].start, buffers[i].end))
    starts = np.array([buffers[i].start for i in order])
    ends = np.array([buffers[i].end for i in order])  # of those placed: later than all
    sizes = np.array([buffers[i].size for i in order])
    # the longest life first; of equal ones the larger
    rank = np.empty(len(order), np.int64)
    rank[np.lexsort((-sizes, starts - ends))] = np.arange(len(order), 0, -1)
    never = int(ends.max()) + 1
    offsets = [0] * len(buffers)
    begin = {0: (never, 0)}  # stretch [start, end) → its height
    end_to_begin = {never: 0}
    heap = [(0, 0)]
    left = len(order)

    def put(low: int, high: int, height: int) -> None:
        begin[low] = (high, height)
        end_to_begin[high] = low
        heapq.heappush(heap, (height, low))

    while left:
        height, low = heapq.heappop(heap)
        if low not in begin or begin[low][1] != height:
            continue
        high = begin[low][0]
        first, last = np.searchsorted(starts, (low, high))
        fits = np.where(ends[first:last] < high, rank[first:last], 0)
        n = int(fits.argmax()) if last > first else 0
        if last > first and fits[n]:
            n += int(first)
            start, end, size = int(starts[n]), int(ends[n]) + 1, int(sizes[n])
            offsets[order[n]] = height
            ends[n] = never + 1
            left -= 1
            if low < start:
                put(low, start, height)
            put(start, end, height + size)
            if end < high:
                put(end, high, height)
            continue
        # nothing fits any more: up to the lower neighbour, and be one with it
        before = end_to_begin.get(low) if low > 0 else None
        levels = [begin[before][1]] if before is not None else []
        levels += [begin[high][1]] if high in begin else []
        if not levels:
            break
        up = min(levels)
        if high in begin and begin[high][1] == up:
            high_end = begin.pop(high)[0]
            del end_to_begin[high]
            high = high_end
        if before is not None and begin[before][1] == up:
            del begin[low]
            low = before
        put(low, high, up)
    top = max((offsets[i] + b.size for i, b in enumerate(buffers)), default=0)
    return top, offsets


class Occupied:
    """Placed buffers, sorted by offset."""

    def __init__(self, capacity: int) -> None:
        #: rows: offset, end of the offset, start of the life, its end
        self.table = np.empty((4, capacity), np.int64)
        self.count = 0

    def place(self, b: Buffer, smallest: bool = False) -> int:
        """Place a buffer at the lowest free offset, or in the smallest gap; returns the offset."""
        n = self.count
        low, high, start, end = self.table[:, :n]
        near = np.flatnonzero((end >= b.start) & (start <= b.end))
        at = 0
        if near.size:
            bottoms, tops = low[near], np.maximum.accumulate(high[near])
            floors = np.empty_like(tops)
            floors[0], floors[1:] = 0, tops[:-1]
            gaps = bottoms - floors
            fits = np.flatnonzero(gaps >= b.size)
            if not fits.size:
                at = int(tops[-1])
            else:
                at = int(floors[fits[gaps[fits].argmin()] if smallest else fits[0]])
        where = int(np.searchsorted(low, at))
        self.table[:, where + 1 : n + 1] = self.table[:, where:n]
        self.table[:, where] = at, at + b.size, b.start, b.end
        self.count += 1
        return at


def in_order(buffers: Sequence[Buffer], order: Iterable[int], smallest: bool = False) -> Offsets:
    """Each buffer in turn at the lowest offset that is free during its life (`smallest`: in the
    smallest gap)."""
    occupied = Occupied(len(buffers))
    offsets = [0] * len(buffers)
    top = 0
    for i in order:
        offsets[i] = occupied.place(buffers[i], smallest)
        top = max(top, offsets[i] + buffers[i].size)
    return top, offsets


def ranked(buffers: Sequence[Buffer], key: Callable[[Buffer], int]) -> list[int]:
    """Buffer numbers, the largest key first; of equal ones the larger, then the earlier."""
    return sorted(
        range(len(buffers)), key=lambda i: (-key(buffers[i]), -buffers[i].size, buffers[i].start)
    )


def _life(b: Buffer) -> int:
    return b.end - b.start + 1


def by_size(buffers: Sequence[Buffer]) -> Offsets:
    """Largest first, each at the lowest free offset."""
    return in_order(buffers, ranked(buffers, lambda b: b.size))


def by_lifetime(buffers: Sequence[Buffer]) -> Offsets:
    """Longest-lived first, each at the lowest free offset."""
    return in_order(buffers, ranked(buffers, _life))


def by_volume(buffers: Sequence[Buffer]) -> Offsets:
    """Largest bytes × lifetime first, each at the lowest free offset."""
    return in_order(buffers, ranked(buffers, lambda b: b.size * _life(b)))


def best_fit(buffers: Sequence[Buffer]) -> Offsets:
    """Largest first, each in the smallest gap that holds it."""
    return in_order(buffers, ranked(buffers, lambda b: b.size), smallest=True)


STRATEGIES: dict[str, Callable[[Sequence[Buffer]], Offsets]] = {
    "timeline": timeline,
    "skyline": skyline,
    "size": by_size,
    "lifetime": by_lifetime,
    "volume": by_volume,
    "best-fit": best_fit,
}

"""Offsets of buffers in an arena, by two strategies. Sizes and offsets are in bytes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from .liveness import Buffer

#: `by_size` compares every buffer with every other; with more of them it takes too long
_MOST_BY_SIZE = 3000


def best(buffers: Sequence[Buffer]) -> tuple[int, list[int]]:
    """The arena's size and an offset for each buffer, by the strategy that needs less."""
    found = [by_program_order(buffers)]
    if len(buffers) <= _MOST_BY_SIZE:
        found.append(by_size(buffers))
    return min(found, key=lambda plan: plan[0])


def by_program_order(buffers: Sequence[Buffer]) -> tuple[int, list[int]]:
    """Allocate and free as the program runs; each buffer takes the smallest free block it fits."""
    free: list[tuple[int, int]] = []  # (offset, size), in order of offset
    top = 0
    offsets = [0] * len(buffers)
    starts = sorted(range(len(buffers)), key=lambda i: buffers[i].start)
    ends = sorted(range(len(buffers)), key=lambda i: buffers[i].end)
    done = 0
    for i in starts:
        while done < len(ends) and buffers[ends[done]].end < buffers[i].start:
            _release(free, offsets[ends[done]], buffers[ends[done]].size)
            done += 1
        size = buffers[i].size
        fits = [(block, at, n) for n, (at, block) in enumerate(free) if block >= size]
        if fits:
            block, at, n = min(fits)
            free[n : n + 1] = [(at + size, block - size)] if block > size else []
        else:
            at = top
            if free and sum(free[-1]) == top:  # grow the last free block
                at = free.pop()[0]
            top = at + size
        offsets[i] = at
    return top, offsets


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    """Add a free block, as one with its free neighbours."""
    insort(free, (offset, size))
    n = free.index((offset, size))
    if n + 1 < len(free) and free[n][0] + free[n][1] == free[n + 1][0]:
        free[n : n + 2] = [(free[n][0], free[n][1] + free[n + 1][1])]
    if n > 0 and free[n - 1][0] + free[n - 1][1] == free[n][0]:
        free[n - 1 : n + 1] = [(free[n - 1][0], free[n - 1][1] + free[n][1])]


def by_size(buffers: Sequence[Buffer]) -> tuple[int, list[int]]:
    """Largest first, each at the lowest offset that is free during its life."""
    placed: list[tuple[int, int, int, int]] = []  # (offset, its end, start, end), by offset
    offsets = [0] * len(buffers)
    top = 0
    for i in sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start)):
        b = buffers[i]
        at = 0
        for low, high, start, end in placed:
            if end < b.start or start > b.end:
                continue
            if low >= at + b.size:
                break
            at = max(at, high)
        offsets[i] = at
        insort(placed, (at, at + b.size, b.start, b.end))
        top = max(top, at + b.size)
    return top, offsets

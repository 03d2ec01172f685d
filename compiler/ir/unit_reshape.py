"""Reshapes that only add or remove dimensions of size 1."""

from __future__ import annotations

from itertools import pairwise


def unit_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int] | None:
    """For each dimension of `old`, its position in `new`, if the shapes differ only in dimensions of size 1; else None.

    A dimension of size 1 corresponds to one between the same neighbours.
    """
    wide_old = [d for d, size in enumerate(old) if size != 1]
    wide_new = [d for d, size in enumerate(new) if size != 1]
    if [old[d] for d in wide_old] != [new[d] for d in wide_new]:
        return None
    moved = dict(zip(wide_old, wide_new))
    for (a, z), (start, stop) in zip(_gaps(wide_old, len(old)), _gaps(wide_new, len(new))):
        moved.update(zip(range(a, z), range(start, stop)))
    return moved


def _gaps(wide: list[int], rank: int) -> list[tuple[int, int]]:
    edges = [-1, *wide, rank]
    return [(low + 1, high) for low, high in pairwise(edges)]

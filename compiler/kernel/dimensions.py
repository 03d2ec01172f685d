"""Dimensions of an index space that are walked as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.dialects.records import record


def neighbours(
    sizes: Sequence[int], walks: Sequence[Sequence[int]], kinds: Sequence[object] | None = None
) -> list[list[int]]:
    """Groups of neighbouring dimensions that every walk goes through as one, without those of size 1.

    sizes [2, 3, 4], strides (12, 4, 1) and (24, 8, 2)    →    [[0, 1, 2]]
    sizes [2, 3, 4], strides (12, 4, 1) and (0, 4, 1)     →    [[0], [1, 2]]

    walks: strides by dimension, of each walk. kinds: only dimensions of one kind are grouped.
    """
    groups: list[list[int]] = []
    for d, size in enumerate(sizes):
        if size == 1:
            continue
        if groups:
            last = groups[-1][-1]
            alike = kinds is None or kinds[last] == kinds[d]
            if alike and all(w[last] == w[d] * size for w in walks):
                groups[-1].append(d)
                continue
        groups.append([d])
    return groups


def merged(
    sizes: Sequence[int], walks: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """The sizes of the groups of `neighbours`, and each walk's strides along them."""
    groups = neighbours(sizes, walks)
    return [prod(sizes[d] for d in g) for g in groups], [[w[g[-1]] for g in groups] for w in walks]


@record
class Walk:
    """Slices of two tensors along a dimension: the sizes of the other dimensions, merged, and both tensors' strides
    along them. The last one is a run of neighbouring elements, if only of one."""

    sizes: tuple[int, ...]
    to: tuple[int, ...]
    of: tuple[int, ...]


def walk_of(shape: Sequence[int], dim: int, to: Sequence[int], of: Sequence[int]) -> Walk:
    """The slices of tensors with these strides, whose sizes differ along `dim` at most."""
    others = [d for d in range(len(shape)) if d != dim]
    sizes, (a, b) = merged([shape[d] for d in others], [[s[d] for d in others] for s in (to, of)])
    if not sizes or a[-1] != 1 or b[-1] != 1:
        sizes, a, b = [*sizes, 1], [*a, 1], [*b, 1]
    return Walk(tuple(sizes), tuple(a), tuple(b))

"""Merging of neighbouring dimensions of an index space."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.dialects.records import record


def neighbours(
    sizes: Sequence[int], walks: Sequence[Sequence[int]], kinds: Sequence[object] | None = None
) -> list[list[int]]:
    """Groups of neighbouring dimensions that can be merged into one; dimensions of size 1 are dropped.

    Dimensions d and d + 1 can be merged if stride[d] == stride[d + 1] * size[d + 1] in all accesses.

    sizes [2, 3, 4], strides (12, 4, 1) and (24, 8, 2)    →    [[0, 1, 2]]
    sizes [2, 3, 4], strides (12, 4, 1) and (0, 4, 1)     →    [[0], [1, 2]]

    Args:
        sizes: the sizes of the dimensions.
        walks: for each access, its strides by dimension, in elements.
        kinds: a label of each dimension; only dimensions with equal labels are merged.
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
    """The sizes of the merged dimensions (`neighbours`), and the strides of each access along them."""
    groups = neighbours(sizes, walks)
    return [prod(sizes[d] for d in g) for g in groups], [[w[g[-1]] for g in groups] for w in walks]


@record
class Walk:
    """The merged dimensions of slices that are copied from one tensor (`of`) to another (`to`).

    The last dimension is contiguous in both tensors; its size is 1 if no dimension is.

    Attributes:
        sizes: the sizes of the merged dimensions, without the one along which slices are taken.
        to, of: the strides of both tensors along them, in elements.
    """

    sizes: tuple[int, ...]
    to: tuple[int, ...]
    of: tuple[int, ...]


def walk_of(shape: Sequence[int], dim: int, to: Sequence[int], of: Sequence[int]) -> Walk:
    """The walk over slices along `dim` of two tensors whose shapes may differ only in `dim`.

    shape: the shape of either. to, of: the strides of both, in elements.
    """
    others = [d for d in range(len(shape)) if d != dim]
    sizes, (a, b) = merged([shape[d] for d in others], [[s[d] for d in others] for s in (to, of)])
    if not sizes or a[-1] != 1 or b[-1] != 1:
        sizes, a, b = [*sizes, 1], [*a, 1], [*b, 1]
    return Walk(tuple(sizes), tuple(a), tuple(b))

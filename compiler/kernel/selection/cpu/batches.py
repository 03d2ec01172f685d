"""Batched matrix products with a BLAS: which batches one loop with constant strides covers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.dimensions import neighbours
from gflow.dialects.extents import varies

#: element types that the BLAS has products for
BLAS_DTYPES = ("f32", "f64")

#: the most runs of one op, which bounds the number of its steps
_MOST_RUNS = 4096


class ManyRuns(ValueError):
    """The batches of a product need more loops than `_MOST_RUNS`."""


def batch_steps(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The batch dimensions as runs, each of which is one loop: (count, strides, offsets) of each run.

    A run covers as many inner dimensions as the strides allow; outer dimensions are unrolled into further runs. Dynamic
    dimensions are made innermost, since they cannot be unrolled.

    Args:
        shape: the sizes of the batch dimensions.
        strides: for each matrix, the strides of the batch dimensions, in elements.

    Returns:
        For each run: the number of products, and for each matrix the stride and the first offset, in elements.

    Raises:
        ManyRuns: there are more runs than `_MOST_RUNS`.
        CannotLower: dynamic dimensions don't fit one run.
    """
    inner = _together(shape, strides)
    if any(varies(size) for size in shape[:inner]):
        order = sorted(range(len(shape)), key=lambda d: varies(shape[d]))
        shape, strides = [shape[d] for d in order], [[s[d] for d in order] for s in strides]
        inner = _together(shape, strides)
        if any(varies(size) for size in shape[:inner]):
            raise CannotLower(
                f"a batched matrix product has too many dynamic batch dimensions: {list(shape)}"
            )
    walked = [d for d in range(inner, len(shape)) if shape[d] != 1]
    count = prod(shape[d] for d in walked)
    steps = tuple(s[walked[-1]] if walked else 0 for s in strides)
    if prod(shape[:inner]) > _MOST_RUNS:
        raise ManyRuns(
            f"a batched matrix product needs {prod(shape[:inner]):,} loops of BLAS calls"
        )
    runs = [(0,) * len(strides)]
    for d in range(inner):
        runs = [
            tuple(r + i * s[d] for r, s in zip(run, strides))
            for run in runs
            for i in range(shape[d])
        ]
    return [(count, steps, run) for run in runs]


def _together(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """The first of the innermost dimensions that one loop covers."""
    groups = neighbours(shape, strides)
    return groups[-1][0] if groups else 0

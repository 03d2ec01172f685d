"""The batches of a product of matrices in calls of a BLAS function, each with a loop over some of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.dimensions import neighbours
from gflow.dialects.extents import varies

#: element types that BLAS has products for
BLAS_DTYPES = ("f32", "f64")

#: so that the steps of one op stay few, whatever its size
_MOST_RUNS = 4096


class ManyRuns(ValueError):
    """The batches of a product lie in too many runs for calls of their own."""


def batch_steps(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The batch dimensions as runs that one loop can walk: (count, strides, offsets) of each.

    The innermost run is as long as the strides allow; the dimensions outside it are unrolled, those that
    vary from call to call inside it.

    Args:
        shape: of the batch dimensions.
        strides: of the batch dimensions, for each matrix, in elements.

    Raises:
        ManyRuns: they are too many to be unrolled.
    """
    inner = _together(shape, strides)
    if any(varies(size) for size in shape[:inner]):
        order = sorted(range(len(shape)), key=lambda d: varies(shape[d]))
        shape, strides = [shape[d] for d in order], [[s[d] for d in order] for s in strides]
        inner = _together(shape, strides)
        if any(varies(size) for size in shape[:inner]):
            raise CannotLower(
                f"a product of matrices has too many batches that vary: {list(shape)}"
            )
    walked = [d for d in range(inner, len(shape)) if shape[d] != 1]
    count = prod(shape[d] for d in walked)
    steps = tuple(s[walked[-1]] if walked else 0 for s in strides)
    if prod(shape[:inner]) > _MOST_RUNS:
        raise ManyRuns(f"a product of matrices has {prod(shape[:inner]):,} runs of batches")
    runs = [(0,) * len(strides)]
    for d in range(inner):
        runs = [
            tuple(r + i * s[d] for r, s in zip(run, strides))
            for run in runs
            for i in range(shape[d])
        ]
    return [(count, steps, run) for run in runs]


def _together(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """The first of the innermost dimensions that one loop can walk."""
    groups = neighbours(shape, strides)
    return groups[-1][0] if groups else 0

"""How the programs of a kernel divide its index space.

A program computes a tile with two axes: `rows`, several dimensions flattened into one, and `cols`, the dimension along
which accesses are contiguous. Along the remaining dimensions (`outer`) it has a single position. Reduced dimensions
that don't fit a tile are iterated over in a loop.
"""

from __future__ import annotations

from math import prod

from gflow.compiler.kernel.description import Access, Kernel
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

#: if `cols` is shorter, the other dimensions are rows of the tile
_LONG = 512

#: the longest row that a program holds as a whole
MOST_PERSISTENT = 8192

#: the longest column that a program holds as a whole, where it needs its elements again after a reduction
MOST_HELD = 1024

#: numbers below this fit 32 bits
_LIMIT = 1 << 31


@record
class Tiling:
    """The axes of a kernel's tiles.

    Attributes:
        rows: the dimensions of the axis "rows", outermost first.
        cols: the dimension of the axis "cols"; -1 for a kernel over a single position.
        outer: the dimensions along which a program has a single position, outermost first.
        loop_rows, loop_cols: whether a program iterates over the axis.
        split: whether several programs share the reduction, each with a piece of the looped axis.
        wide: whether offsets need 64 bits.
        runs: whether a program iterates over a run of rows that aren't reduced (kernels with partial sums).
        held: whether a program reduces the axis "rows" without a loop, since it holds all of it.
    """

    rows: tuple[int, ...]
    cols: int
    outer: tuple[int, ...]
    loop_rows: bool = False
    loop_cols: bool = False
    split: bool = False
    wide: bool = False
    runs: bool = False
    held: bool = False

    @property
    def axis(self) -> str:
        """The looped axis, "rows" or "cols", "rows" if both are; "" without a loop."""
        return "rows" if self.loop_rows or self.runs else "cols" if self.loop_cols else ""


def tiling_of(k: Kernel) -> Tiling:
    """Choose the axes of a kernel's tiles."""
    wide = _reach(k) >= _LIMIT
    if any(n.op == "partial_sums" for n in k.nodes):
        (cols,) = k.reduced
        kept = tuple(d for d in range(len(k.sizes)) if d != cols)
        return Tiling(kept, cols, (), wide=wide, runs=True)
    cols = _contiguous(k)
    if cols < 0:
        return Tiling((), -1, (), wide=wide)
    others = tuple(d for d in range(len(k.sizes)) if d != cols)
    if not any(n.op == "reduce" for n in k.nodes):
        other = _second(k, cols)
        if other >= 0:
            return Tiling((other,), cols, tuple(d for d in others if d != other), wide=wide)
        if k.sizes[cols] < _LONG:
            return Tiling(others, cols, (), wide=wide)
        return Tiling((), cols, others, wide=wide)
    kept = tuple(d for d in others if d not in k.reduced)
    reduced = tuple(d for d in others if d in k.reduced)
    if cols not in k.reduced:
        held = _again(k) and prod(k.sizes[d] for d in reduced) <= MOST_HELD
        return Tiling(reduced, cols, kept, loop_rows=not held, wide=wide, held=held)
    if reduced:
        return Tiling(reduced, cols, kept, loop_rows=True, loop_cols=True, wide=wide)
    return Tiling(kept, cols, (), loop_cols=k.sizes[cols] > MOST_PERSISTENT, wide=wide)


def _again(k: Kernel) -> bool:
    """Whether values over the whole index space are needed again after a reduction."""
    late = (s for s in k.stores if k.nodes[s.node].depth)
    spans = any(s.strides[d] for s in late for d in k.reduced)
    return spans or any(n.op == "reduce" and n.depth > 1 for n in k.nodes)


def partial_stores(k: Kernel) -> frozenset[int]:
    """The numbers of the stores of partial sums (`gflow.partial_sums`)."""
    return frozenset(n for n, s in enumerate(k.stores) if k.nodes[s.node].op == "partial_sums")


def run_of(k: Kernel) -> int:
    """The rows that one program of a kernel with partial sums processes."""
    return next(n.attrs["run"] for n in k.nodes if n.op == "partial_sums")


def _reach(k: Kernel) -> int:
    """A bound on all offsets, positions and indices that the kernel computes."""
    walks = [a.strides for a in (*k.loads, *k.stores)] + list(k.indices)
    spans = [sum((n - 1) * abs(s) for n, s in zip(k.sizes, w) if n) + 1 for w in walks]
    return max([k.numel, *spans]) + 4 * MOST_PERSISTENT


def _bytes(a: Access) -> int:
    return TensorType((), a.dtype).itemsize


def _contiguous(k: Kernel) -> int:
    """The dimension with the most contiguous traffic in bytes; on a tie the innermost. -1: there are no dimensions."""
    best, best_score = -1, float("-inf")
    for d, size in enumerate(k.sizes):
        score = 0.0
        for a in (*k.loads, *k.stores):
            stride = a.strides[d]
            weight = _bytes(a) * _share(k, a)
            score += weight if stride == 1 else -weight if stride else 0
        if size < 4:
            score -= 100
        if score >= best_score:
            best, best_score = d, score
    return best


def _share(k: Kernel, a: Access) -> float:
    """The share of the index space that an access covers, from 0 to 1; small for broadcast operands."""
    covered = prod(n for n, s in zip(k.sizes, a.strides) if s)
    return covered / max(1, k.numel)


def _second(k: Kernel, cols: int) -> int:
    """The dimension with the most traffic of accesses that are contiguous there but not along `cols`; -1: none."""
    best, most = -1, 0.0
    for d, size in enumerate(k.sizes):
        if d == cols or size < 4:
            continue
        weight = sum(
            _bytes(a) * _share(k, a)
            for a in (*k.loads, *k.stores)
            if a.strides[d] == 1 and a.strides[cols] not in (0, 1)
        )
        if weight > most and weight > 0.05:
            best, most = d, weight
    return best

"""How a generated kernel walks its index space on a processor: the vectors' dimension, what threads share, and what of
a row is kept between passes, in scratch."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import at_most, divisor
from gflow.dialects.types import FLOATS

from . import row_values

#: with fewer independent pieces than this, threads share the work inside a piece
_FEW = 8

#: most vectors side by side in a column reduction, and ops in the body of so many copies
_UNROLL, _UNROLLED_OPS = 4, 60


@dataclass
class Loops:
    """How a kernel runs.

    mode: "scalar" (no dimensions), "pointwise", "row" (the vector runs along a reduced dimension), "column"
        (along a kept one).
    outer: kept dimensions but the vector's, in loop order.
    reduced: reduced dimensions but the vector's.
    vector: the dimension that vectors run along, or -1.
    split: threads share the reduced dimensions (or, in "pointwise", the vector's) rather than the outer ones.
    blocked: sums are made of runs; short ones too, which share the code of long ones.
    lanes: elements a vector.
    whole: the vector's dimension is a multiple of the lanes, so no vector needs a mask ("pointwise" and "row").
    unroll: vectors side by side in a "column" kernel, a tile.
    tiled: "all" if the vector's dimension is a multiple of a tile, "none" if it is shorter than one, else "some".
    cached: nodes that a "row" kernel keeps between passes, and the pass that computes each.
    scratch_rows, scratch_width: the 64-bit cells that each thread has in scratch, as a rectangle: reductions by
        kept elements where it is "split", or cached nodes by the row's length.
    """

    mode: str
    outer: tuple[int, ...]
    reduced: tuple[int, ...]
    vector: int
    split: bool
    blocked: bool
    lanes: int
    whole: bool = False
    unroll: int = 1
    tiled: str = "none"
    cached: dict[int, int] = field(default_factory=dict)
    scratch_rows: int = 0
    scratch_width: int = 0


def loops_of(k: Kernel) -> Loops:
    """Choose the loop order of a kernel."""
    has_reduce = any(n.op == "reduce" for n in k.nodes)
    vector = _vector_dim(k)
    if vector < 0:
        mode = "scalar"
    elif not has_reduce:
        mode = "pointwise"
    else:
        mode = "row" if vector in k.reduced else "column"
    outer = tuple(d for d in range(len(k.sizes)) if d not in k.reduced and d != vector)
    reduced = tuple(d for d in sorted(k.reduced) if d != vector)
    pieces = at_most(prod(k.sizes[d] for d in outer))
    length = at_most(k.sizes[vector]) if vector >= 0 else 1
    walked = k.reduced if has_reduce else range(len(k.sizes))
    wide = any(n.dtype == "f64" for n in k.nodes if n.op != "const" and n.dims.intersection(walked))
    p = Loops(mode, outer, reduced, vector, False, False, ANY.lanes // 2 if wide else ANY.lanes)
    reduced_numel = at_most(prod(k.sizes[d] for d in k.reduced))
    if mode == "pointwise":
        p.split = pieces < _FEW and length >= 1024
    elif mode == "row":
        p.split = pieces < _FEW and _one_pass(k) and reduced_numel >= 4096
        p.blocked = _adds(k)
        if not p.split:
            p.cached = row_values.choose(k, vector, _passes(k), reduced_numel)
    elif mode == "column":
        p.unroll, p.tiled = _tiling(k, vector, p.lanes)
        tiles = pieces * -(-length // (p.unroll * p.lanes))
        p.split = tiles < 2 * _FEW and _one_pass(k) and reduced_numel >= 64
        p.blocked = _adds(k)
    p.whole = mode in ("pointwise", "row") and divisor(k.sizes[vector]) % p.lanes == 0
    if p.cached:
        p.scratch_rows = len(p.cached)
        p.scratch_width = row_values.width(reduced_numel, p.lanes)
    if p.split and mode != "pointwise":
        p.scratch_rows = sum(n.op == "reduce" for n in k.nodes)
        kept = prod(k.sizes[d] for d in range(len(k.sizes)) if d not in k.reduced)
        p.scratch_width = at_most(kept)
    return p


def _tiling(k: Kernel, vector: int, lanes: int) -> tuple[int, str]:
    """How many vectors lie side by side, and whether such tiles cover the dimension.

    A tile is several cache lines wide, and its sums don't wait for each other; a size that divides the dimension
    saves a second body for the rest.
    """
    ops = sum(vector in n.dims or n.op == "reduce" for n in k.nodes)
    most = min(_UNROLL, max(2, _UNROLLED_OPS // ops))
    size, length = divisor(k.sizes[vector]), at_most(k.sizes[vector])
    if length < 2 * lanes or (size % lanes and length < most * lanes):
        return 1, "none"
    for unroll in range(most, 1, -1):
        if size % (unroll * lanes) == 0:
            return unroll, "all"
    return min(most, length // lanes), "some"


def _passes(k: Kernel) -> list[tuple[int, int]]:
    """(node, pass) for all that a pass over the reduced dimensions computes: what the reductions of a level combine,
    and what is stored while they do (or after the last)."""
    out = [(n.args[0], n.depth) for n in k.nodes if n.op == "reduce"]
    for store in k.stores:
        if any(store.strides[d] for d in k.reduced):
            out.append((store.node, k.nodes[store.node].depth + 1))
    return out


def _adds(k: Kernel) -> bool:
    """Whether rounding errors add up in a reduction."""
    reds = [n for n in k.nodes if n.op == "reduce" and n.dtype in FLOATS]
    return any(n.attrs["kind"] in ("sum", "prod") for n in reds)


def _one_pass(k: Kernel) -> bool:
    """Whether the reduced dimensions are walked just once."""
    return all(at == 1 for _, at in _passes(k))


def _vector_dim(k: Kernel) -> int:
    """The dimension with the most contiguous traffic; on a tie the innermost."""
    best, best_score = -1, float("-inf")
    for d, size in enumerate(k.sizes):
        score = 0.0
        for access in [*k.loads, *k.stores]:
            weight = 2 if access.node >= 0 else 1
            stride = access.strides[d]
            score += weight if stride == 1 else -weight if stride else 0
        if at_most(size) < 4:
            score -= 100
        if score >= best_score:
            best, best_score = d, score
    return best

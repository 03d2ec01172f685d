"""The loop nest of a region on a CPU: loop order, vectorized dimension, parallel dimension, cached row values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import at_most, divisor, varies
from gflow.dialects.types import FLOATS, HALVES

from ..choice import Choice, Way
from . import row_values
from .sharing import Sharing, of_kernel, sharing

#: with fewer outer iterations than this, threads share the inner dimension
_FEW = 8

#: in a column reduction: the most vectors that are accumulated side by side, and the most ops of the unrolled body
_UNROLL, _UNROLLED_OPS = 4, 60

#: with fewer elements, vectors run along another dimension
_SHORT = 4
#: element types of loads that are transposed in blocks
_TURNED = ("f32", *HALVES)


@dataclass
class Loops:
    """The loop nest of a kernel.

    Attributes:
        mode: "scalar" (no dimensions), "pointwise", "row" (vectors run along a reduced dimension), or "column"
            (vectors run along a kept dimension of a reduction).
        outer: kept dimensions without the vectorized one, outermost loop first.
        reduced: reduced dimensions without the vectorized one, outermost loop first.
        vector: the dimension that vectors run along; -1: none.
        split: threads share the reduced dimensions (in "pointwise", the vectorized one) instead of the outer ones.
        blocked: sums are accumulated in blocks, so that rounding errors grow slowly.
        lanes: elements of a vector.
        whole: the vectorized dimension is a multiple of `lanes`, so no masks are needed ("pointwise" and "row").
        turned: loads of a "pointwise" kernel that are transposed in blocks. Along the two inner dimensions they are
            contiguous in the other order than all other accesses.
        unroll: the vectors that a "column" kernel accumulates side by side; together they are a tile.
        tiled: "all" if the vectorized dimension is a multiple of a tile, "none" without tiles, else "some".
        cached: nodes that a "row" kernel keeps in scratch between passes over the row, and the pass that computes each.
        scratch_rows, scratch_width: each thread has scratch_rows × scratch_width cells of 64 bits: one row for each
            reduction with a cell for each kept element (`split`), or one row for each cached node.
    """

    mode: str
    outer: tuple[int, ...]
    reduced: tuple[int, ...]
    vector: int
    split: bool
    blocked: bool
    lanes: int
    whole: bool = False
    turned: tuple[int, ...] = ()
    unroll: int = 1
    tiled: str = "none"
    cached: dict[int, int] = field(default_factory=dict)
    scratch_rows: int = 0
    scratch_width: int = 0

    def scratch_bytes(self, threads: int) -> int:
        """Bytes of scratch of all threads."""
        return 8 * self.scratch_rows * self.scratch_width * threads


def loops_of(k: Kernel) -> Loops:
    """The loop nest that the cost model chooses for a kernel."""
    vector = _vector_dim(k)
    reducing = _reduces(k)
    kept = [d for d in range(len(k.sizes)) if d not in k.reduced and d != vector]
    order = (*kept, *(d for d in sorted(k.reduced) if d != vector))
    if vector < 0:
        return _loops(k, (), ANY.lanes)
    walked = k.reduced if reducing else range(len(k.sizes))
    wide = any(n.dtype == "f64" for n in k.nodes if n.op != "const" and n.dims.intersection(walked))
    lanes = ANY.lanes // 2 if wide else ANY.lanes
    pieces, length = at_most(prod(k.sizes[d] for d in kept)), at_most(k.sizes[vector])
    reduced = at_most(prod(k.sizes[d] for d in k.reduced))
    unroll, split, cached = 1, False, 0
    if not reducing:
        split = bool(kept) and pieces < _FEW and length >= 1024
    elif vector in k.reduced:
        split = pieces < _FEW and _one_pass(k) and reduced >= 4096
        cached = 0 if split else len(_worth_keeping(k, vector))
    else:
        unroll, split = _columns(k, vector, lanes, pieces, reduced)
    return _loops(k, (*order, vector), lanes, unroll, split, cached)


def way_of_loops(k: Kernel) -> Way:
    """The loop nest that the cost model chooses, as fields of `gflow.kernel`."""
    p = loops_of(k)
    shared: Sharing = {"threads": "one", "from_size": 0}
    if p.mode != "scalar":
        shared = sharing(of_kernel(k))
    order = (*p.outer, *p.reduced, *((p.vector,) if p.vector >= 0 else ()))
    return Way(
        order=order, lanes=p.lanes, unroll=p.unroll, share="inner" if p.split else "outer",
        kept=len(p.cached), **shared,
    )  # fmt: skip


def choice_of_loops(k: Kernel, threads: int) -> Choice:
    """The choice for a region. threads: the most threads that run it."""
    way = way_of_loops(k)
    return Choice("loops", scratch_of(way, k, threads), **vars(way))


def scratch_of(way: Way, k: Kernel, threads: int) -> int:
    """Bytes of scratch of a kernel with such a loop nest on `threads` threads, a multiple of 64."""
    return -(-loops_from(way, k).scratch_bytes(threads) // 64) * 64


def loops_from(choice: Way, k: Kernel) -> Loops:
    """The loop nest that the fields of `gflow.kernel` state.

    Raises:
        CannotLower: the kernel cannot have this loop nest.
    """
    order, vector = choice.order, choice.order[-1] if choice.order else -1
    every = sorted(order) == list(range(len(k.sizes)))
    choice.check(every, f"needs the order of the {len(k.sizes)} dimensions of the index space")
    inner = [d in k.reduced for d in order[:-1]]
    choice.check(inner == sorted(inner), "has a reduced dimension around a kept one")
    choice.check(
        choice.lanes in (ANY.lanes // 2, ANY.lanes),
        f"needs lanes of {ANY.lanes // 2} or {ANY.lanes}",
    )
    split = choice.share == "inner"
    column = _reduces(k) and vector not in k.reduced
    choice.check(
        choice.unroll == 1 or (column and 1 <= choice.unroll <= _UNROLL),
        "sums too many vectors side by side",
    )
    choice.check(
        not split or (vector >= 0 and (not _reduces(k) or _one_pass(k))),
        "shares reduced dimensions that several passes read",
    )
    if choice.kept:
        row = vector in k.reduced and not split
        most = len(_worth_keeping(k, vector)) if row else 0
        choice.check(
            choice.kept <= most,
            f"keeps more values of a row than the {most} that several passes read",
        )
    choice.shared()
    choice.check(
        choice.threads == "one" or vector >= 0,
        "has all threads run a kernel without a vector dimension",
    )
    return _loops(k, order, choice.lanes, choice.unroll, split, choice.kept)


def _loops(
    k: Kernel,
    order: tuple[int, ...],
    lanes: int,
    unroll: int = 1,
    split: bool = False,
    kept: int = 0,
) -> Loops:
    """The loop nest for a choice of its parameters.

    order: all dimensions, the vectorized one last. kept: the number of row values that are cached.
    """
    outer = tuple(d for d in order[:-1] if d not in k.reduced)
    reduced = tuple(d for d in order[:-1] if d in k.reduced)
    vector = order[-1] if order else -1
    if vector < 0:
        mode = "scalar"
    elif not _reduces(k):
        mode = "pointwise"
    else:
        mode = "row" if vector in k.reduced else "column"
    p = Loops(
        mode,
        outer,
        reduced,
        vector,
        split,
        mode in ("row", "column") and _adds(k),
        lanes,
        unroll=unroll,
    )
    numel = at_most(prod(k.sizes[d] for d in k.reduced))
    if mode in ("pointwise", "row"):
        p.whole = divisor(k.sizes[vector]) % lanes == 0
    if mode == "pointwise" and not split:
        p.turned = _turned(k, outer, vector, lanes)
    if mode == "column" and unroll > 1:
        p.tiled = "all" if divisor(k.sizes[vector]) % (unroll * lanes) == 0 else "some"
    if kept:
        p.cached = dict(list(_worth_keeping(k, vector).items())[:kept])
        p.scratch_rows, p.scratch_width = kept, row_values.width(numel, lanes)
    if split and mode != "pointwise":
        p.scratch_rows = sum(n.op == "reduce" for n in k.nodes)
        width = prod(k.sizes[d] for d in range(len(k.sizes)) if d not in k.reduced)
        p.scratch_width = at_most(width)
    return p


def _turned(k: Kernel, outer: Sequence[int], vector: int, lanes: int) -> tuple[int, ...]:
    """The loads to transpose in blocks, in a kernel whose vectorized dimension is shorter than a vector.

    An example is the update of a channels-last convolution's weight, whose gradient has another dimension order.
    """
    if (
        not outer
        or lanes != ANY.lanes
        or varies(k.sizes[vector])
        or not 1 < k.sizes[vector] <= lanes
    ):
        return ()
    before, size = outer[-1], k.sizes[vector]
    if any(strides[before] or strides[vector] for strides in k.indices):
        return ()
    found = []
    for i, access in enumerate((*k.loads, *k.stores)):
        walk = (access.strides[before], access.strides[vector])
        if walk == (size, 1) or (access.node < 0 and walk == (0, 0)):
            continue
        if access.node >= 0 or walk[0] != 1 or walk[1] < 2 or access.dtype not in _TURNED:
            return ()
        found.append(i)
    return tuple(found)


def _worth_keeping(k: Kernel, vector: int) -> dict[int, int]:
    return row_values.choose(k, vector, _passes(k), at_most(prod(k.sizes[d] for d in k.reduced)))


def runs(k: Kernel) -> bool:
    """Whether a kernel must run: it has positions, or a reduction, whose identity is stored even for empty operands."""
    return k.numel > 0 or _reduces(k)


def _reduces(k: Kernel) -> bool:
    return any(n.op == "reduce" for n in k.nodes)


def _columns(k: Kernel, vector: int, lanes: int, pieces: int, reduced: int) -> tuple[int, bool]:
    """The vectors that a column reduction accumulates side by side, and whether threads share the reduced dimensions.

    Where they do, what follows the reductions is computed for one vector at a time, after all partial results: only
    the ops of the loop are unrolled. That is done for the widest tile, if it divides the dimension: each further width
    is one more kernel to compile.

    Args:
        pieces: the positions of the kept dimensions without the vectorized one.
        reduced: those of the reduced dimensions.
    """
    sums = [n for n in k.nodes if n.op == "reduce"]
    every = _tiling(k, vector, lanes, sum(vector in n.dims or n.op == "reduce" for n in k.nodes))
    loop = _tiling(k, vector, lanes, len(sums) + sum(bool(n.dims & k.reduced) for n in k.nodes))
    for unroll in (loop, every):
        tiles = pieces * -(-at_most(k.sizes[vector]) // (unroll * lanes))
        whole = unroll == _UNROLL and divisor(k.sizes[vector]) % (unroll * lanes) == 0
        if _one_pass(k) and reduced >= 64 and tiles < 2 * _FEW and (whole or unroll == every):
            return unroll, True
    return every, False


def _tiling(k: Kernel, vector: int, lanes: int, ops: int) -> int:
    """The number of vectors of a tile. ops: how many the unrolled code has for a vector.

    A tile is several cache lines wide, and its sums are independent of each other. A tile that divides the dimension
    needs no second loop body for the remainder.
    """
    most = min(_UNROLL, max(2, _UNROLLED_OPS // ops))
    size, length = divisor(k.sizes[vector]), at_most(k.sizes[vector])
    if length < 2 * lanes or (size % lanes and length < most * lanes):
        return 1
    whole = (n for n in range(most, 1, -1) if size % (n * lanes) == 0)
    return next(whole, min(most, length // lanes))


def _passes(k: Kernel) -> list[tuple[int, int]]:
    """(node, pass) for each node that a pass over the reduced dimensions needs, counted from 1.

    Pass n computes the operands of reductions of depth n, and the full-size stores that depend on reductions of depth
    n - 1 at most.
    """
    out = [(n.args[0], n.depth) for n in k.nodes if n.op == "reduce"]
    for store in k.stores:
        if any(store.strides[d] for d in k.reduced):
            out.append((store.node, k.nodes[store.node].depth + 1))
    return out


def _adds(k: Kernel) -> bool:
    """Whether rounding errors accumulate in a reduction (sums and products of floats)."""
    reds = [n for n in k.nodes if n.op == "reduce" and n.dtype in FLOATS]
    return any(n.attrs["kind"] in ("sum", "prod") for n in reds)


def _one_pass(k: Kernel) -> bool:
    """Whether one pass over the reduced dimensions suffices."""
    return all(at == 1 for _, at in _passes(k))


def _vector_dim(k: Kernel) -> int:
    """The dimension with the most contiguous accesses, stores counted twice; on a tie the innermost. -1: none.

    A short dimension is one only if there is no other. A reduction across the lanes of a vector takes the time of some
    strided accesses (`_SHORT`), so dimensions that are reduced several times may be longer.
    """
    least = min(_SHORT * max(sum(n.op == "reduce" for n in k.nodes), 1) + 1, ANY.lanes)
    best, best_score = -1, float("-inf")
    for d, size in enumerate(k.sizes):
        score = 0.0
        for access in [*k.loads, *k.stores]:
            weight = 2 if access.node >= 0 else 1
            stride = access.strides[d]
            score += weight if stride == 1 else -weight if stride else 0
        if at_most(size) < (least if d in k.reduced else _SHORT):
            score -= 100
        if score >= best_score:
            best, best_score = d, score
    return best

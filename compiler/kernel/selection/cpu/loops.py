"""How a generated kernel walks its index space on a processor: the vectors' dimension, what threads share, and what of
a row is kept between passes, in scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import at_most, divisor, varies
from gflow.dialects.types import FLOATS

from ..choice import Choice, Way
from . import row_values
from .sharing import Sharing, of_kernel, sharing

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
    turned: loads of a "pointwise" kernel that are transposed in blocks: what is contiguous for all others along the
        inner two dimensions lies the other way round for them.
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
    turned: tuple[int, ...] = ()
    unroll: int = 1
    tiled: str = "none"
    cached: dict[int, int] = field(default_factory=dict)
    scratch_rows: int = 0
    scratch_width: int = 0

    def scratch_bytes(self, threads: int) -> int:
        """Bytes of scratch, of so many threads."""
        return 8 * self.scratch_rows * self.scratch_width * threads


def loops_of(k: Kernel) -> Loops:
    """The model's choice of how a kernel runs."""
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
        unroll = _tiling(k, vector, lanes)
        tiles = pieces * -(-length // (unroll * lanes))
        split = tiles < 2 * _FEW and _one_pass(k) and reduced >= 64
    return _loops(k, (*order, vector), lanes, unroll, split, cached)


def way_of_loops(k: Kernel) -> Way:
    """How a kernel runs, as `gflow.kernel` has it of one launch."""
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
    """How a region runs, as `gflow.kernel` has it. threads: the most that run it."""
    way = way_of_loops(k)
    return Choice("loops", scratch_of(way, k, threads), **vars(way))


def scratch_of(way: Way, k: Kernel, threads: int) -> int:
    """Bytes of scratch of a kernel that runs so, on so many threads: a multiple of 64."""
    return -(-loops_from(way, k).scratch_bytes(threads) // 64) * 64


def loops_from(choice: Way, k: Kernel) -> Loops:
    """The loops that were chosen for a kernel.

    Raises:
        CannotLower: it cannot run so.
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
    """What follows from a choice: order: of all dimensions. kept: how many values."""
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
    """The loads to transpose, where vectors would be shorter than a register: of the gradient of a channels-last
    convolution's weight, in an update of the weight."""
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
        if access.node >= 0 or walk[0] != 1 or walk[1] < 2 or access.dtype != "f32":
            return ()
        found.append(i)
    return tuple(found)


def _worth_keeping(k: Kernel, vector: int) -> dict[int, int]:
    return row_values.choose(k, vector, _passes(k), at_most(prod(k.sizes[d] for d in k.reduced)))


def runs(k: Kernel) -> bool:
    """Whether a kernel has anything to do: sums of nothing are written, too."""
    return k.numel > 0 or _reduces(k)


def _reduces(k: Kernel) -> bool:
    return any(n.op == "reduce" for n in k.nodes)


def _tiling(k: Kernel, vector: int, lanes: int) -> int:
    """How many vectors lie side by side.

    A tile is several cache lines wide, and its sums don't wait for each other; a size that divides the dimension
    saves a second body for the rest.
    """
    ops = sum(vector in n.dims or n.op == "reduce" for n in k.nodes)
    most = min(_UNROLL, max(2, _UNROLLED_OPS // ops))
    size, length = divisor(k.sizes[vector]), at_most(k.sizes[vector])
    if length < 2 * lanes or (size % lanes and length < most * lanes):
        return 1
    whole = (n for n in range(most, 1, -1) if size % (n * lanes) == 0)
    return next(whole, min(most, length // lanes))


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

"""Which numbers a CPU kernel takes at run time, and how it walks its index space.

A kernel function takes one pointer to 64-bit words: addresses first, then sizes, strides and constants. What is
in words is not in the code, so layers that differ in size only share one function; `structure` is what must agree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gflow.compiler.kernel.description import Kernel
from gflow.dialects.extents import at_most, divisor
from gflow.dialects.types import FLOATS

from . import row_plan

#: constants that stay in the code, where they may fold
_PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)

#: with fewer independent pieces than this, threads share the work inside a piece
_FEW = 8

#: terms of a sum that are added up in their own type; such runs are added up in float64
BLOCK = 16

#: most vectors side by side in a column reduction, and ops in the body of so many copies
_UNROLL, _UNROLLED_OPS = 4, 60


@dataclass(frozen=True)
class Word:
    """One 64-bit argument: an operand's or result's address, or a number.

    kind: "load", "store" (value: the access's position in the kernel), "scratch", "int" or "float".
    """

    kind: str
    value: Any = 0

    def bits(self) -> int:
        """A number as the 64 bits of an i64; a float as those of an f64."""
        if self.kind == "float":
            return struct.unpack("<q", struct.pack("<d", float(self.value)))[0]
        return int(self.value) - (1 << 64 if int(self.value) >= 1 << 63 else 0)


@dataclass
class Plan:
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
    words: the kernel's arguments, in order.
    index: where to find a word: ("load", i), ("store", i), ("size", d), ("lstride", i, d), ("istride", i, d),
        ("sstride", i, d), ("const", node), ("scratch",), ("row",).
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
    words: list[Word] = field(default_factory=list)
    index: dict[tuple[Any, ...], int] = field(default_factory=dict)
    scratch_rows: int = 0
    scratch_width: int = 0


def plan(k: Kernel) -> Plan:
    """Choose the loop order of a kernel and list its words."""
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
    p = Plan(mode, outer, reduced, vector, False, False, 8 if wide else 16)
    reduced_numel = at_most(prod(k.sizes[d] for d in k.reduced))
    if mode == "pointwise":
        p.split = pieces < _FEW and length >= 1024
    elif mode == "row":
        p.split = pieces < _FEW and _one_pass(k) and reduced_numel >= 4096
        p.blocked = _adds(k)
        if not p.split:
            p.cached = row_plan.choose(k, vector, _passes(k), reduced_numel)
    elif mode == "column":
        p.unroll, p.tiled = _tiling(k, vector, p.lanes)
        tiles = pieces * -(-length // (p.unroll * p.lanes))
        p.split = tiles < 2 * _FEW and _one_pass(k) and reduced_numel >= 64
        p.blocked = _adds(k)
    p.whole = mode in ("pointwise", "row") and divisor(k.sizes[vector]) % p.lanes == 0
    if p.cached:
        p.scratch_rows = len(p.cached)
        p.scratch_width = row_plan.width(reduced_numel, p.lanes)
    if p.split and mode != "pointwise":
        p.scratch_rows = sum(n.op == "reduce" for n in k.nodes)
        kept = prod(k.sizes[d] for d in range(len(k.sizes)) if d not in k.reduced)
        p.scratch_width = at_most(kept)
    for key, word in _list_words(k, p):
        p.index[key] = len(p.words)
        p.words.append(word)
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


def stride_class(stride: int) -> str:
    """What the code knows of a stride: 0, 1 or "n"."""
    return str(stride) if stride in (0, 1) else "n"


def is_plain(value: Any, dtype: str) -> bool:
    """Whether a constant stays in the code."""
    return (
        dtype == "i1"
        or float(value) in _PLAIN
        or value != value
        or value in (float("inf"), float("-inf"))
    )


def _list_words(k: Kernel, p: Plan) -> Iterator[tuple[tuple[Any, ...], Word]]:
    for i in range(len(k.loads)):
        yield ("load", i), Word("load", i)
    for i in range(len(k.stores)):
        yield ("store", i), Word("store", i)
    if p.scratch_rows:
        yield ("scratch",), Word("scratch", 0)
    if p.cached:
        yield ("row",), Word("int", p.scratch_width)
    for d, size in enumerate(k.sizes):
        yield ("size", d), Word("int", size)
    for name, walks in (
        ("lstride", [a.strides for a in k.loads]),
        ("istride", k.indices),
        ("sstride", [a.strides for a in k.stores]),
    ):
        for i, strides in enumerate(walks):
            for d, stride in enumerate(strides):
                if stride not in (0, 1):
                    yield (name, i, d), Word("int", stride)
    for i, node in enumerate(k.nodes):
        if node.op == "const" and not is_plain(node.attrs["value"], node.dtype):
            yield (
                ("const", i),
                Word("float" if node.dtype in FLOATS else "int", node.attrs["value"]),
            )


def structure(k: Kernel, p: Plan) -> tuple[Any, ...]:
    """A key: kernels with equal keys have the same code."""
    nodes = tuple(
        (
            n.op,
            n.dtype,
            n.args,
            n.slot,
            "?"
            if ("const", i) in p.index
            else tuple((a, str(v)) for a, v in sorted(n.attrs.items())),
        )
        for i, n in enumerate(k.nodes)
    )
    walks = tuple(
        (a.dtype, a.node, a.offset, tuple(stride_class(s) for s in a.strides))
        for a in [*k.loads, *k.stores]
    )
    indices = tuple(tuple(stride_class(s) for s in strides) for strides in k.indices)
    cached = tuple(sorted(p.cached.items()))
    return (nodes, walks, indices, len(k.sizes), tuple(sorted(k.reduced)), p.mode, p.outer, p.reduced, p.vector,
            p.split, p.blocked, p.lanes, p.whole, p.unroll, p.tiled, cached)  # fmt: skip

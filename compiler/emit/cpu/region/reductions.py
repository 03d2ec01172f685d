"""Accumulators of reductions, blocked sums, and partial results of threads in scratch.

A blocked sum adds blocks of terms in the terms' own type, and the sums of blocks in float64.
"""

from __future__ import annotations

from collections.abc import Callable

from ..language import scalars as sc
from ..language.expressions import value
from ..language.writer import Carried, Writer

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}


def run_dtype(w: Writer, r: int) -> str:
    """The register type in which a block of terms of reduction `r` is combined."""
    return sc.register_dtype(w.k.nodes[w.k.nodes[r].args[0]].dtype)


def total_dtype(w: Writer, r: int) -> str:
    """The register type in which blocks are combined: float64 for sums and products of float32."""
    run = run_dtype(w, r)
    return "f64" if run == "f32" and w.k.nodes[r].attrs["kind"] in ("sum", "prod") else run


def _identities(w: Writer, reds: list[int], dtypes: list[str], lanes: int) -> Carried:
    out = []
    for r, dtype in zip(reds, dtypes):
        node = w.k.nodes[r]
        known = dtype if dtype.startswith("f") else node.dtype
        start = sc.identity(w, node.attrs["kind"], known, lanes)
        out.append((start, sc.shaped(dtype, lanes)))
    return out


def starts(w: Writer, reds: list[int], lanes: int) -> Carried:
    """The initial values and types of the totals of the reductions `reds`."""
    return _identities(w, reds, [total_dtype(w, r) for r in reds], lanes)


def fold(w: Writer, reds: list[int], carried: list[str], lanes: int) -> list[str]:
    """The accumulators of a block, combined with the values at the current position."""
    out = []
    for r, acc in zip(reds, carried):
        node = w.k.nodes[r]
        dtype = w.k.nodes[node.args[0]].dtype
        x = value(w, node.args[0], lanes)
        if w.mask is not None and w.p.mode == "row":
            neutral = sc.identity(w, node.attrs["kind"], dtype, lanes)
            x = sc.select(w, w.mask, x, neutral, sc.register_type(dtype, lanes), lanes)
        out.append(sc.combine(w, node.attrs["kind"], acc, x, dtype, lanes))
    return out


def merge(w: Writer, reds: list[int], a: list[str], b: list[str], lanes: int) -> list[str]:
    """The totals `a` and `b` of the reductions `reds`, combined."""
    out = []
    for r, x, y in zip(reds, a, b):
        node, total = w.k.nodes[r], total_dtype(w, r)
        dtype = total if total.startswith("f") else node.dtype
        out.append(sc.combine(w, node.attrs["kind"], x, y, dtype, lanes))
    return out


def blocks(
    w: Writer,
    bounds: tuple[str, str],
    length: int,
    reds: list[int],
    carried: Carried,
    body: Callable[[tuple[str, str], Carried], list[str]],
) -> list[str]:
    """Combine the values between `bounds` with the totals `carried`; with `blocked`, in blocks of `length`.

    A block is short and summed in the type of its terms, which is as fast as one long sum. Its rounding errors are
    small and independent of those of other blocks; combining blocks in float64 adds none.
    """

    def add(part: tuple[str, str], totals: list[str]) -> list[str]:
        runs = [run_dtype(w, r) for r in reds]
        found = body(part, _identities(w, reds, runs, w.lanes))
        wide = [
            sc.convert(w, x, run, total_dtype(w, r), w.lanes)
            for r, run, x in zip(reds, runs, found)
        ]
        return merge(w, reds, totals, wide, w.lanes)

    if not w.p.blocked:
        return add(bounds, [name for name, _ in carried])
    low, high = bounds

    def block(start: str, totals: list[str]) -> list[str]:
        return add((start, w.at_most(w.add(start, w.i64(length)), high)), totals)

    return w.walk(low, high, w.i64(length), carried, block)


def across(w: Writer, r: int, x: str, lanes: int) -> str:
    """The lanes of reduction `r`'s total, combined into a scalar."""
    node, total = w.k.nodes[r], total_dtype(w, r)
    dtype = total if total.startswith("f") else node.dtype
    return sc.horizontal(w, node.attrs["kind"], x, dtype, lanes)


def finish(w: Writer, reds: list[int], values: list[str], lanes: int) -> None:
    """Define finished reductions as values of their nodes."""
    for r, name in zip(reds, values):
        node, total = w.k.nodes[r], total_dtype(w, r)
        if total.startswith("f"):
            name = sc.convert(w, name, total, node.dtype, lanes)
        w.env[r, lanes, w.position if lanes else -1] = name


def of_level(w: Writer, depth: int | None = None) -> list[int]:
    """The reductions of level `depth` (`Node.depth`); None: all."""
    nodes = enumerate(w.k.nodes)
    return [i for i, n in nodes if n.op == "reduce" and depth in (None, n.depth)]


def levels(w: Writer) -> int:
    """The depth of the deepest reduction, which is the number of passes over the data."""
    return max(w.k.nodes[r].depth for r in of_level(w))


def spanning(w: Writer) -> list[int]:
    """The stores over the whole index space, reduced dimensions included."""
    stores = enumerate(w.k.stores)
    return [i for i, s in stores if any(s.strides[d] for d in w.k.reduced)]


def kept(w: Writer) -> list[int]:
    """The stores of the reduced shape."""
    wide = set(spanning(w))
    return [i for i in range(len(w.k.stores)) if i not in wide]


def stores_at(w: Writer, level: int) -> list[int]:
    """The spanning stores of the pass of level `level`: their values are not known in an earlier pass."""
    return [s for s in spanning(w) if w.k.nodes[w.k.stores[s].node].depth == level - 1]


# -- scratch: [thread][reduction][kept element], all cells as wide as the widest accumulator


def _cell_type(w: Writer) -> str:
    kinds = {total_dtype(w, r) for r in of_level(w)}
    return "i64" if kinds & {"f64", "i64"} else "i32"


def cell(w: Writer, thread: str, m: int, width: str, at: str) -> str:
    """The address in scratch of a thread's partial result of reduction `m` for kept element `at` of `width`."""
    row = w.add(w.mul(thread, w.i64(len(of_level(w)))), w.i64(m))
    slot = w.add(w.mul(row, width), at)
    scratch = w.word("scratch")
    return w(
        f"llvm.getelementptr {scratch}[{slot}] : (!llvm.ptr, i64) -> !llvm.ptr, {_cell_type(w)}"
    )


def put(w: Writer, at: str, name: str, r: int, lanes: int) -> None:
    """Store a partial result of reduction `r` (or a vector of them) at the address `at` of its cell."""
    reg, cell_type = total_dtype(w, r), _cell_type(w)
    integer, ty = sc.shaped(f"i{_BITS[reg]}", lanes), sc.shaped(cell_type, lanes)
    if reg.startswith("f"):
        name = w(f"arith.bitcast {name} : {sc.shaped(reg, lanes)} to {integer}")
    if integer != ty:
        name = w(f"arith.extui {name} : {integer} to {ty}")
    w.write(name, at, ty, 4, w.mask if lanes else None)


def get(w: Writer, at: str, r: int, lanes: int) -> str:
    """Load a partial result that `put` stored."""
    reg, cell_type = total_dtype(w, r), _cell_type(w)
    integer, ty = sc.shaped(f"i{_BITS[reg]}", lanes), sc.shaped(cell_type, lanes)
    name = w.read(at, ty, 4, w.mask if lanes else None)
    if integer != ty:
        name = w(f"arith.trunci {name} : {ty} to {integer}")
    if reg.startswith("f"):
        name = w(f"arith.bitcast {name} : {integer} to {sc.shaped(reg, lanes)}")
    return name

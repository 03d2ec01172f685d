"""The values of a region's expression DAG at the writer's current position."""

from __future__ import annotations

from collections.abc import Iterable

from gflow.compiler.kernel.description import Node
from gflow.dialects.types import FLOATS, HALVES

from . import memory, philox, row_cache
from . import scalars as sc
from .parameters import is_plain
from .writer import Writer


def value(w: Writer, i: int, lanes: int) -> str:
    """The SSA name of node `i`, as a scalar (lanes 0) or a vector; its code is written if it isn't there yet."""
    node = w.k.nodes[i]
    own = lanes if i in w.varying else 0
    position = w.position if own else -1
    name = w.env.get((i, own, position))
    if name is None:
        name = _compute(w, i, node, own)
        w.env[i, own, position] = name
    if own == lanes:
        return name
    wide = w.env.get((i, lanes, -1))
    if wide is None:
        ty = sc.register_dtype(node.dtype)
        if node.op == "const" and is_plain(node.attrs["value"], node.dtype):
            wide = sc.constant(w, node.attrs["value"], node.dtype, lanes)
        else:
            wide = w(f"vector.broadcast {name} : {ty} to vector<{lanes}x{ty}>")
        w.env[i, lanes, -1] = wide
    return wide


def _compute(w: Writer, i: int, node: Node, lanes: int) -> str:
    if lanes and i in w.p.cached:
        first = w.p.cached[i]
        if w.phase > first:
            return row_cache.load(w, i)
        name = _evaluate(w, i, node, lanes)
        if w.phase == first:
            row_cache.store(w, i, name)
        return name
    return _evaluate(w, i, node, lanes)


def _evaluate(w: Writer, i: int, node: Node, lanes: int) -> str:
    match node.op:
        case "load":
            return memory.load(w, node.slot, lanes)
        case "const":
            if not is_plain(node.attrs["value"], node.dtype):
                return _constant_word(w, i, node)
            return sc.constant(w, node.attrs["value"], node.dtype, lanes)
        case "index":
            return _index(w, node.slot, lanes)
        case "random":
            args = [value(w, a, lanes if n == 0 else 0) for n, a in enumerate(node.args)]
            return philox.emit(w, node.attrs["kind"], node.attrs["stream"], args, node.dtype, lanes)
        case "reduce":
            raise AssertionError("a reduction is computed by its loop")
    args = [value(w, a, lanes) for a in node.args]
    dtypes = [w.k.nodes[a].dtype for a in node.args]
    return sc.elementwise(w, node.op, args, dtypes, node.dtype, node.attrs, lanes)


def _constant_word(w: Writer, i: int, node: Node) -> str:
    raw = w.word("const", i)
    reg = sc.register_dtype(node.dtype)
    if node.dtype in FLOATS:
        if reg == "f64":
            return raw
        number = w(f"arith.truncf {raw} : f64 to f32")
        return sc.round_half(w, number, node.dtype, 0) if node.dtype in HALVES else number
    return raw if reg == "i64" else w(f"arith.trunci {raw} : i64 to {reg}")


def _index(w: Writer, slot: int, lanes: int) -> str:
    strides = w.k.indices[slot]
    base = w.linear("istride", slot, strides) or w.i64(0)
    if not lanes:
        return base
    i64 = f"vector<{lanes}xi64>"
    if strides[w.p.vector] == 1:
        steps = w.steps(lanes, "i64")
    else:
        steps = w.lane_offsets(w.word("istride", slot, w.p.vector), w.lanes)
    return w(f"arith.addi {w(f'vector.broadcast {base} : i64 to {i64}')}, {steps} : {i64}")


def needed(w: Writer, roots: Iterable[int]) -> set[int]:
    """The nodes that `roots` are computed from, themselves included, down to reductions, which are finished by then."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            if w.k.nodes[i].op != "reduce":
                stack += w.k.nodes[i].args
    return found


def hoist(
    w: Writer, depth: int, available: set[int], lanes: int = 0, only: set[int] | None = None
) -> None:
    """Write loop-invariant values before the loops that follow.

    Args:
        w: the writer.
        depth: only nodes with at most so many reductions on a path below them.
        available: only nodes that vary along no other dimensions.
        lanes: 0: the scalars among them; otherwise the vectors, at the current unroll position.
        only: the nodes that the loops use; None: all.
    """
    for i, node in enumerate(w.k.nodes):
        if only is not None and i not in only:
            continue
        ready = node.depth <= depth and node.op not in ("const", "reduce")
        if ready and node.dims <= available and (i in w.varying) == bool(lanes):
            value(w, i, lanes)


def write_stores(w: Writer, stores: Iterable[int], lanes: int) -> None:
    """Write these stores. All values are computed before the first store, as a result may overwrite an operand."""
    values = [(i, value(w, w.k.stores[i].node, lanes)) for i in stores]
    for i, name in values:
        memory.store(w, i, name, lanes)

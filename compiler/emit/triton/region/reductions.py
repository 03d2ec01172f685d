"""The passes of a kernel with reductions."""

from __future__ import annotations

from gflow.compiler.kernel.description import Kernel, Node
from gflow.dialects.types import FLOATS, HALVES

from ..language.expressions import literal, rounded, triton_type
from .writer import Writer, register

_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "ui8": 8, "ui16": 16, "ui32": 32, "ui64": 64}


def kind_of(node: Node) -> str:
    """`sum`, `prod`, `max`, `min`, `or` or `and`."""
    kind = node.attrs["kind"]
    if node.dtype == "i1":
        return {"sum": "or", "max": "or", "any": "or"}.get(kind, "and")
    return {"any": "or", "all": "and"}.get(kind, kind)


def identity(node: Node, dtype: str = "") -> str:
    """The identity element of a reduction, as an expression. dtype: of the registers; "": those of the result."""
    kind, dtype = kind_of(node), dtype or register(node)
    if kind in ("sum", "prod", "or"):
        return literal(1 if kind == "prod" else 0, dtype)
    if dtype in FLOATS:
        return literal(float("-inf") if kind == "max" else float("inf"), dtype)
    if kind == "and":
        return literal(1 if node.dtype == "i1" else -1, dtype)
    bits = _BITS[dtype]
    if dtype.startswith("u"):
        return literal(0 if kind == "max" else (1 << bits) - 1, dtype)
    low = -(1 << (bits - 1))
    return literal(low if kind == "max" else -low - 1, dtype)


def combine(node: Node, a: str, b: str) -> str:
    """The combination of two values of a reduction, as an expression."""
    kind = kind_of(node)
    if kind in ("max", "min"):
        nan = ", tl.PropagateNan.ALL" if node.dtype in FLOATS else ""
        return f"tl.{kind}imum({a}, {b}{nan})"
    return f"{a} {({'sum': '+', 'prod': '*', 'or': '|', 'and': '&'})[kind]} {b}"


def across(w: Writer, node: Node, x: str) -> str:
    """The reduction of a tile along its reduced axes, as an expression."""
    if _widens(w, node):
        w.used.add("gf_wide_sum")
        return f"gf_wide_sum({x})"
    axes = [n for n, which in enumerate(("rows", "cols")) if w.reduced(which)]
    keep = ""
    if w.t.rows:
        keep = ", keep_dims=True" if len(axes) == 1 else ""
    else:
        axes = [0]
    for axis in reversed(axes):
        x = along(w.used, node, x, axis, keep)
    return x


def along(used: set[str], node: Node, x: str, axis: int, keep: str) -> str:
    """The reduction of a tile along one axis, as an expression.

    used: the device functions that are called are added to it. keep: the argument that keeps the axis, as text.
    """
    kind = kind_of(node)
    if kind == "sum":
        return f"tl.sum({x}, {axis}{keep})"
    name = kind if kind in ("prod", "or", "and") or node.dtype in FLOATS else f"int_{kind}"
    used.add(f"gf_combine_{name}")
    return f"tl.reduce({x}, {axis}, gf_combine_{name}{keep})"


def _widens(w: Writer, node: Node) -> bool:
    """Whether a reduction of whole rows gives float64 sums of float32 values (those of loops are converted before)."""
    argument = w.k.nodes[node.args[0]]
    in_loop = w.t.held or (w.t.axis and not w.t.runs)
    return not in_loop and register(node) != register(argument)


def finished(w: Writer, r: int, x: str) -> None:
    """Define the value of a finished reduction's node."""
    node = w.k.nodes[r]
    name = f"{node.attrs['kind']}_{r}"
    w.line(f"{name} = {settled(node, x)}")
    w.scopes[-1].names[r] = name


def settled(node: Node, x: str) -> str:
    """A finished reduction in the type of its node, as an expression."""
    if node.dtype == "i1":
        return f"({x}) != 0"
    if node.dtype in HALVES:
        return rounded(f"({x})", node.dtype)
    return x if node.dtype in FLOATS else f"({x}).to({triton_type(node.dtype)})"


def operand(w: Writer, r: int, whole: bool) -> str:
    """The operand of reduction `r`, with the identity where the tile reaches beyond the index space.

    whole: whether the result must have the tile's shape.
    """
    node = w.k.nodes[r]
    argument = w.k.nodes[node.args[0]]
    x = w.value(node.args[0])
    if not x.isidentifier() and not x.startswith("tl."):
        x = f"tl.full([], {x}, {triton_type(register(argument))})"
    if argument.dtype == "i1":
        x = f"{x}.to(tl.int32)"
    elif w.t.held and register(node) != register(argument):  # a loop's accumulators convert
        x = f"{x}.to({triton_type(register(node))})"
    mask = w.mask(
        frozenset(d for which in ("rows", "cols") if w.reduced(which) for d in w.axis(which))
    )
    if mask:
        kept = register(argument) if _widens(w, node) else ""
        x = f"tl.where({mask}, {x}, {identity(node, kept)})"
    if whole and not covers(w, argument, mask):
        x = f"tl.broadcast_to({x}, {w.shape()})"
    return x


def covers(w: Writer, node: Node, mask: str) -> bool:
    """Whether a value has the tile's shape."""
    masked = {
        "rows": "rows_in" in mask or mask == "inside",
        "cols": "cols_in" in mask or mask == "inside",
    }
    return all(
        bool(node.dims & set(w.axis(which))) or masked[which]
        for which in ("rows", "cols")
        if w.axis(which)
    )


# -- passes


def spanning(k: Kernel) -> list[int]:
    """The numbers of the stores over the whole index space, reduced dimensions included."""
    return [n for n, s in enumerate(k.stores) if any(s.strides[d] for d in k.reduced)]


def reductions(k: Kernel, depth: int) -> list[int]:
    """The numbers of the reduction nodes of one depth."""
    return [i for i, n in enumerate(k.nodes) if n.op == "reduce" and n.depth == depth]


def levels(k: Kernel) -> int:
    """The depth of the deepest reduction; 0 without one."""
    return max((n.depth for n in k.nodes if n.op == "reduce"), default=0)


def write_reductions(w: Writer) -> None:
    """Write the passes, one for each level of reductions; each also stores values that depend on no later level."""
    k = w.k
    wide, deepest = spanning(k), levels(k)
    for level in range(1, deepest + 1):
        reds = reductions(k, level)
        if w.t.axis:
            early = [s for s in wide if k.nodes[k.stores[s].node].depth == level - 1]
            _looped(w, reds, early)
        else:
            for r in reds:
                finished(w, r, across(w, k.nodes[r], operand(w, r, True)))
    if w.t.axis:
        late = [s for s in wide if k.nodes[k.stores[s].node].depth == deepest]
        if late:
            w.loops(lambda: w.write(late))
        w.write([n for n in range(len(k.stores)) if n not in wide])
    else:
        w.write(range(len(k.stores)))


def _looped(w: Writer, reds: list[int], stores: list[int]) -> None:
    nodes = [w.k.nodes[r] for r in reds]
    for r, node in zip(reds, nodes):
        w.line(f"acc_{r} = tl.full({w.shape()}, {identity(node)}, {triton_type(register(node))})")

    def body() -> None:
        values = [operand(w, r, False) for r in reds]
        names = [w.value(w.k.stores[s].node) for s in stores]
        for r, node, x in zip(reds, nodes, values):
            w.line(f"acc_{r} = {combine(node, f'acc_{r}', x)}")
        for s, name in zip(stores, names):
            w.store(s, name)

    w.loops(body)
    for r, node in zip(reds, nodes):
        finished(w, r, across(w, node, f"acc_{r}"))

"""Replace masks that compare positions or documents by a window, `causal` or documents of `gflow.attention`.

Before:

    %i = "gflow.iota"() {dim = 0 : i64, dtype = "i64", shape = array<i64: 256, 256>} : () -> tensor<256x256xi64>
    %j = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 256, 256>} : () -> tensor<256x256xi64>
    %0 = "gflow.compare"(%j, %i) {predicate = "le"} : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi1>
    %1 = "gflow.sub"(%i, %j) : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi64>
    %w = "gflow.constant"() {value = dense<64> : tensor<256x256xi64>} : () -> tensor<256x256xi64>
    %2 = "gflow.compare"(%1, %w) {predicate = "lt"} : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi1>
    %3 = "gflow.and"(%0, %2) : (tensor<256x256xi1>, tensor<256x256xi1>) -> tensor<256x256xi1>
    %4 = "gflow.reshape"(%3) {shape = array<i64: 1, 1, 256, 256>} : (tensor<256x256xi1>) -> tensor<1x1x256x256xi1>
    %5:2 = "gflow.attention"(%q, %k, %v, %4) {causal = false, scale = 1.250000e-01 : f64, …}

After `gflow-recognize-windows,gflow-simplify`:

    %0:2 = "gflow.attention"(%q, %k, %v) {causal = true, scale = 1.250000e-01 : f64, window = array<i64: 63, 0>, …}

No kernel then reads a mask, and blocks of keys that a window or documents hide are not loaded.

- A mask is i1, or is added: then hidden keys have numbers of at most -1e8 (in float16, the lowest number), and visible
  keys have 0 or other numbers.
- Terms of a conjunction that compare i - j with a constant become the window. Terms that compare an integer for each
  position of q with an integer for each position of k become documents. Numbers that are read by indices of all
  positions (`ids[batch, i]`) count as these integers. Other terms stay a mask of i1, and numbers that are added stay a
  bias.
- A mask of large finite numbers gives a row without a visible key equal weights. It is replaced only if the window is
  its only term, and every position sees a key.
- The gradient of a bias is kept only if the rest of the bias has the same shape.
- As with `causal`, a hidden score or value has no effect even if it is NaN or infinite. A sum with -inf and a product
  with a weight of 0 would be NaN.
"""

from __future__ import annotations

from typing import Any

from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.extents import varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import bounds, extras
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..base import Pass
from .index_masks import Parts, Seen, parts_of, spread
from .mask_operands import fit

#: the number of operands before the optional ones
NEEDED = {"attention": 3, "attention_grad": 6}


@record
class WindowOptions:
    """Options of gflow-recognize-windows: none."""


def run(function: func.FuncOp, options: WindowOptions) -> None:
    """Replace masks by windows and documents."""
    if not _has_mask(function):
        return
    body = read_body(function)
    known: dict[int, Parts] = {}
    for o in body.ops:
        if o.name not in NEEDED:
            continue
        found = extras([body.types[v] for v in o.operands], NEEDED[o.name])
        if found.bias is None or found.documents is not None:
            continue
        bias = o.operands[found.bias]
        if bias not in known:
            known[bias] = parts_of(body, bias)
        if known[bias].found:
            with ir.InsertionPoint(o.op), o.op.location:
                _rewrite(body, o, known[bias], found.bias)


def _has_mask(function: func.FuncOp) -> bool:
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        needed = NEEDED.get(op.name.removeprefix("gflow."))
        if needed is not None and len(op.operands) > needed:
            return True
    return False


def _rewrite(body: Body, o: Op, parts: Parts, at: int) -> None:
    """Replace one op. at: the index of its bias among the operands."""
    attrs: dict[str, Any] = read(OPS[o.name], o.op.attributes)
    first = int(o.name != "attention")
    q, k = (body.types[v] for v in o.operands[first : first + 2])
    bias = body.types[o.operands[at]]
    if attrs["formula"] or len(parts.documents) > 1 or not _is_exact(parts, q.shape[1], k.shape[1]):
        return
    if attrs.get("bias_grad") and not _keeps_gradient(body, parts, bias):
        return
    sizes = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    left = _mask(body, parts, sizes, bias)
    documents = [
        _numbers(body, x, sizes, d) for pair in parts.documents for x, d in zip(pair, (2, 3))
    ]
    operands = [body.values[v] for v in o.operands]
    operands[at : at + 1] = [] if left is None else [left]
    attrs |= _limits(attrs, parts, q.shape[1], k.shape[1])
    new = builder.build_op(o.name, [*operands, *documents], attrs)
    for old, result in zip(o.op.results, new.results):
        old.replace_all_uses_with(result)
    for number, result in zip(o.results, new.results):
        body.values[number] = result
    o.op.erase()


def _is_exact(parts: Parts, positions: int, keys: int) -> bool:
    """Whether the window hides exactly what -inf hides, also in rows without a visible key."""
    if not parts.finite:
        return True
    alone = not (parts.added or parts.kept or parts.hidden or parts.documents)
    own = (parts.left is None or parts.left >= 0) and (parts.right is None or parts.right >= 0)
    fits = positions <= keys and not varies(keys - positions)
    return alone and own and fits


def _keeps_gradient(body: Body, parts: Parts, bias: TensorType) -> bool:
    """Whether the rest of a bias has its shape, and therefore the same gradient."""
    if len(parts.added) != 1 or parts.kept or parts.hidden:
        return False
    (x,) = parts.added
    there = {d for d in x.dims if d is not None}
    same = all((n == 1) == (d not in there) for d, n in enumerate(bias.shape))
    return same and body.types[x.value].dtype == bias.dtype


def _mask(body: Body, parts: Parts, sizes: tuple[int, ...], bias: TensorType) -> ir.Value | None:
    """The rest of the mask: a bias of i1 or of numbers; None if nothing remains."""
    every = range(4)
    kept: ir.Value | None = None
    for x, hides in [*((x, False) for x in parts.kept), *((x, True) for x in parts.hidden)]:
        here = spread(body, x, sizes, every)
        here = builder.build("not", [here]) if hides else here
        kept = here if kept is None else builder.build("and", fit(kept, here))
    added: ir.Value | None = None
    for x in parts.added:
        number = builder.convert(spread(body, x, sizes, every), bias.dtype)
        added = number if added is None else builder.build("add", fit(added, number))
    if kept is None or added is None:
        return kept if added is None else added
    kept, added = fit(kept, added)
    low = builder.splat(float("-inf"), builder.type_of(added))
    return builder.build("select", [kept, added, low])


def _numbers(body: Body, x: Seen, sizes: tuple[int, ...], dim: int) -> ir.Value:
    """Numbers of documents as [batch, position]."""
    value = spread(body, x, sizes, (0, dim))
    whole = (sizes[0], sizes[dim])
    if builder.type_of(value).shape != whole:
        value = builder.broadcast(value, whole, (0, 1))
    return value


def _limits(attrs: dict[str, Any], parts: Parts, positions: int, keys: int) -> dict[str, Any]:
    """`causal` and `window`; limits that hide nothing are omitted."""
    left, right = (
        a if b is None else b if a is None else min(a, b)
        for a, b in zip(bounds(attrs), (parts.left, parts.right))
    )
    left = None if left is None or left >= positions - 1 else left
    right = None if right is None or right >= keys - 1 else right
    window = None
    if left is not None or right not in (None, 0):
        window = (
            positions - 1 if left is None else left,
            keys - 1 if right is None else right,
        )
    return {"causal": right is not None and right <= 0, "window": window}


PASS = Pass("gflow-recognize-windows", run, WindowOptions, __doc__ or "")

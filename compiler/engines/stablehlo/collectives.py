"""Collectives in StableHLO: all ranks run the same module, and rank numbers are replica numbers.

    %y, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", axes = ["dp"], …}

becomes, over a mesh dp × tp of 2 × 2,

    %y = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 2], [1, 3]]> : …}> ({ add })

The module is compiled with as many replicas as the mesh has ranks. Tokens are not needed, since all replicas have the
same schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod

import numpy as np

from gflow.dialects.distribution.mesh import Mesh, mesh_of
from gflow.dialects.mlir import ir
from gflow.dialects.ops.distribution import COLLECTIVE, SHARD, START, WAIT, shard_size
from gflow.dialects.types import TensorType, type_of

from ..form import Call, Row
from .writer import Writer, numbers

Values = list[ir.Value]

_COMBINERS = {
    "sum": "add", "avg": "add", "product": "multiply", "min": "minimum", "max": "maximum",
}  # fmt: skip
#: XLA's collectives have no bitwise reductions: each rank reduces the gathered operands
_BITS = {"band": "and", "bor": "or", "bxor": "xor"}


def refuse(call: Call) -> str:
    """The reason why a collective isn't supported; "" if it is, and for other ops."""
    if call.name not in (COLLECTIVE, START, SHARD):
        return ""
    a = call.attrs
    if a.get("group"):
        return "which ranks are in a process group by name, only gflow knows: files take mesh axes"
    if a.get("kind") in ("send", "recv"):
        return f"a {a['kind']} is on some ranks alone, and a file is one program for all"
    if a.get("sends") is not None or a.get("takes") is not None:
        return "StableHLO's all_to_all has equal parts"
    if a.get("kind") == "reduce_scatter" and a["reduction"] in _BITS:
        return f"XLA has no reduce_scatter by {a['reduction']}"
    return ""


def _mesh(call: Call) -> Mesh:
    owner = call.op.parent
    assert owner is not None
    mesh = mesh_of(owner)
    assert mesh is not None, "axes without a mesh do not verify"
    return mesh


def groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    """The ranks of each group along `axes`, ordered by their number in the group (row-major over `axes`)."""
    ranks = np.arange(prod(mesh.sizes)).reshape(mesh.sizes)
    inside = [mesh.axes.index(axis) for axis in axes]
    outside = [d for d in range(len(mesh.axes)) if d not in inside]
    return ranks.transpose(*outside, *inside).reshape(-1, mesh.size(axes)).tolist()


def _attribute(call: Call) -> str:
    found = groups(_mesh(call), tuple(call.attrs["axes"]))
    return f"dense<{found}> : tensor<{len(found)}x{len(found[0])}xi64>"


def _collective(w: Writer, call: Call, operands: Values) -> Values:
    a, x, ty = call.attrs, operands[0], call.type
    token = w.splat(0, call.results[1])
    listed, dim = _attribute(call), a.get("dim") or 0
    kind = a["kind"]
    if kind == "all_gather":
        return [_all_gather(w, x, ty, dim, listed), token]
    if kind == "broadcast":
        return [_of_all(w, x, a["ranks"], listed)(a["root"]), token]
    if kind == "all_to_all":
        to = dim if a.get("concat_dim") is None else a["concat_dim"]
        op = w.op("all_to_all", [x], [ty], 0, split_dimension=f"{dim} : i64",
                  concat_dimension=f"{to} : i64", split_count=f"{a['ranks']} : i64",
                  replica_groups=listed)  # fmt: skip
        return [op.results[0], token]
    if a["reduction"] in _BITS:
        return [_bits(w, x, a["ranks"], _BITS[a["reduction"]], listed), token]
    more = {"scatter_dimension": f"{dim} : i64"} if kind == "reduce_scatter" else {}
    op = w.op(kind, [x], [ty], 1, replica_groups=listed, **more)
    combiner = _COMBINERS[a["reduction"]]
    if ty.dtype == "i1":
        combiner = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(
            combiner, combiner
        )
    w.combiner(op, combiner, ty.dtype)
    found = op.results[0]
    if a["reduction"] == "avg":
        found = w.one("divide", [found, w.splat(a["ranks"], ty)], ty)
    return [found, token]


def _all_gather(w: Writer, x: ir.Value, ty: TensorType, dim: int, listed: str) -> ir.Value:
    return w.one("all_gather", [x], ty, all_gather_dim=f"{dim} : i64", replica_groups=listed)


def _of_all(w: Writer, x: ir.Value, ranks: int, listed: str) -> Callable[[int], ir.Value]:
    """Gather the values of all ranks; returns a function that gives the value of rank n of the group."""
    ty = type_of(x)
    every = TensorType((ranks, *ty.shape), ty.dtype)
    gathered = _all_gather(w, w.reshape(x, (1, *ty.shape)), every, 0, listed)
    one = TensorType((1, *ty.shape), ty.dtype)

    def of(n: int) -> ir.Value:
        found = w.one("slice", [gathered], one, start_indices=numbers([n] + [0] * ty.rank),
                      limit_indices=numbers([n + 1, *ty.shape]), strides=numbers([1] * every.rank))  # fmt: skip
        return w.reshape(found, ty.shape)

    return of


def _bits(w: Writer, x: ir.Value, ranks: int, combiner: str, listed: str) -> ir.Value:
    of = _of_all(w, x, ranks, listed)
    total = of(0)
    for n in range(1, ranks):
        total = w.one(combiner, [total, of(n)], type_of(x))
    return total


def _shard(w: Writer, call: Call, operands: Values) -> Values:
    """Write a `gflow.shard`: this rank's piece, by a table of each rank's number in its group."""
    (x,) = operands
    ty, ranks = call.operands[0], call.attrs["ranks"]
    size = shard_size(ty, ranks)
    flat = w.reshape(x, (ty.numel,))
    if size * ranks > ty.numel:
        zero = w.splat(0, TensorType((), ty.dtype))
        whole = TensorType((size * ranks,), ty.dtype)
        flat = w.one("pad", [flat, zero], whole, edge_padding_low=numbers([0]),
                     edge_padding_high=numbers([size * ranks - ty.numel]), interior_padding=numbers([0]))  # fmt: skip
    mesh = _mesh(call)
    starts = np.zeros(prod(mesh.sizes), np.int64)
    for place, rank in itertools.chain.from_iterable(
        enumerate(g) for g in groups(mesh, tuple(call.attrs["axes"]))
    ):
        starts[rank] = place * size
    rank = w.convert(w.op("replica_id", [], [TensorType((), "ui32")]).results[0], "i64")
    start = w.one("dynamic_slice", [w.array(starts, "i64"), rank], TensorType((1,), "i64"),
                  slice_sizes=numbers([1]))  # fmt: skip
    begin = w.reshape(start, ())
    return [w.one("dynamic_slice", [flat, begin], call.type, slice_sizes=numbers([size]))]


def _wait(w: Writer, call: Call, operands: Values) -> Values:
    assert type_of(operands[0]) == call.type
    return [operands[0]]


ROWS: dict[str, Row] = {
    COLLECTIVE: Row("`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, over mesh axes", _collective),
    START: Row("as `collective`", _collective),
    WAIT: Row("none: its operand", _wait),
    SHARD: Row("`replica_id`, `dynamic_slice`", _shard),
}  # fmt: skip

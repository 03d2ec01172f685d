"""Attention on a CPU: gflow's own kernel or PyTorch's, and the blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from gflow.compiler.targets.processors import ANY, Processor
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most, typical, varies
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.types import TensorType

from ....ir.ssa import Op
from ...attention import AttentionBlocks
from ...attention_contest import AttentionContest
from ...blocks import LANES
from ..choice import Choice
from .blocking import STRIP

#: the number of required operands
NEEDED = {"attention": 3, "attention_grad": 6}

#: the most and the fewest rows of a task in the forward; each task packs the keys again
_ROWS, _LEAST_ROWS = 384, 48
#: rows of a block in the backward; sums over rows are sequential
_GRAD_ROWS = 144
#: the number of tasks for each thread in the forward, where there are enough rows
_TASKS = 4
#: up to _FEW rows that share keys, keys are not packed; up to _FEWEST, vectors do not run along rows
_FEW, _FEWEST = 48, 4


def attention_of(
    p: Processor, o: Op, types: Sequence[TensorType], threads: int, precision: str = ""
) -> Choice | None:
    """The choice of gflow's own kernel for an `attention` or `attention_grad`; None where it does not support the op.

    types: the types of the function's values. threads: the number of threads that scratch is for.
    precision: "bf16": its operands are bfloat16 values, of which two are multiplied at a time; `types` are float32.
    """
    needed = NEEDED[o.name]
    attrs = read(OPS[o.name], o.op.attributes)
    if not _covered(o, [types[v] for v in o.operands], attrs):
        return None
    first = 0 if needed == 3 else 1
    q, k, v = (types[x] for x in o.operands[first : first + 3])
    made = replace(blocks_of(p, q, k, threads, needed == 6), pairs=bool(precision))
    if precision and not reads_pairs(made, q, v):
        return None
    d, values = q.shape[3], v.shape[3]
    each = made.forward(d, values) if needed == 3 else made.backward(d, values)
    kind = "attention" if made.packed else "attention_rows"
    tile = (*made.tile, made.keys)
    return Choice(
        kind, made.scratch(each, threads), tile=tile, block=(made.rows,), precision=precision
    )  # fmt: skip


def reads_pairs(blocks: AttentionBlocks, q: TensorType, v: TensorType) -> bool:
    """Whether a blocking is one of a kernel that multiplies two bfloat16 values at a time: of many rows, whose channels
    are pairs."""
    return blocks.packed and blocks.rows % 2 == q.shape[3] % 2 == v.shape[3] % 2 == 0


def contest_of(o: Op, types: Sequence[TensorType]) -> AttentionContest | None:
    """The key of the timed comparison of gflow's own kernel and PyTorch's.

    None where only one of them supports the op: with dropout, with q and v of different channels, with a mask that
    isn't of q's dtype, or for attention that was recognized as a formula (`formula = true`).

    types: the types of the function's values.
    """
    needed, attrs = NEEDED[o.name], read(OPS[o.name], o.op.attributes)
    given = [types[v] for v in o.operands]
    first = 0 if needed == 3 else 1
    q, k, v = given[first : first + 3]
    bias = extras(given, needed).bias
    alone = attrs["dropout"] or attrs["formula"] or q.shape[3] != v.shape[3]
    if alone or not _covered(o, given, attrs):
        return None
    if bias is not None and given[bias].dtype != q.dtype:
        return None
    (batch, rows, heads, channels), (keys, shared) = q.shape, k.shape[1:3]
    return AttentionContest(
        typical(batch), heads, shared, typical(rows), typical(keys), channels, v.shape[3], attrs["causal"],
        bias is not None, needed == 6,
    )  # fmt: skip


def _covered(o: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> bool:
    """Whether gflow's own kernel supports it.

    It supports float32, static channels, no gradient of a bias, no window or documents, and tensors with elements.
    """
    needed = NEEDED[o.name]
    first = 0 if needed == 3 else 1
    q, k, v = types[first : first + 3]
    if q.dtype != "f32" or attrs.get("bias_grad") or not q.numel or not k.numel or not v.numel:
        return False
    if varies(q.shape[3]) or varies(v.shape[3]):
        return False
    found = extras(types, needed)
    if attrs["window"] or found.documents is not None:
        return False
    return found.bias is None or types[found.bias].dtype in ("f32", "i1")


def blocks_of(
    p: Processor, q: TensorType, k: TensorType, threads: int, grad: bool
) -> AttentionBlocks:
    """The blocking of an attention. q, k: the types of queries and keys. grad: whether it computes gradients."""
    batch, positions, heads, _ = q.shape
    shared, keys = k.shape[2], min(ANY.scores, _up(at_most(k.shape[1]), LANES))
    height, vectors = min(p.tiles, key=lambda tile: (tile[1] > 2, p.tiles.index(tile)))
    tile = (height, vectors * LANES)
    if grad:
        rows = at_most(positions)
        return AttentionBlocks(tile, _up(ceil(rows / ceil(rows / _GRAD_ROWS)), height), keys)
    rows = at_most(positions) * (heads // shared)  # rows that share keys
    if rows <= _FEWEST:
        height = next(n for n in (1, 2, 4) if n >= rows)
        return AttentionBlocks((height, STRIP), rows, keys, packed=False)
    tasks = _TASKS * threads / max(at_most(batch) * shared, 1)
    if rows <= _FEW:
        parts = ceil(min(tasks / _TASKS, rows / LANES))
        return AttentionBlocks(
            (LANES, int(p.issued * p.latency)), ceil(rows / parts), keys, packed=False
        )
    parts = max(ceil(rows / _ROWS), min(ceil(tasks), ceil(rows / _LEAST_ROWS)))
    return AttentionBlocks(tile, _up(ceil(rows / parts), height), keys)


def _up(size: int, unit: int) -> int:
    return ceil(size / unit) * unit

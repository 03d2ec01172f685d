"""The cost of an op: bytes moved, floating-point operations, and the time of a device.

The time is a roofline (Williams et al., 2009): the larger of the times of memory traffic and of arithmetic, plus a
launch. Views cost nothing. Costs are those of the op in the present IR: before fusion, every elementwise op loads and
stores its tensors; after fusion, a kernel loads each operand and stores each result once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from math import prod

from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most, roughly, varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import bounds
from gflow.dialects.ops.compute import kernel_dims
from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.ops.packed import packed_k
from gflow.dialects.ops.structure import BARRIER, ENGINE_YIELD
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..targets import Device
from .views import VIEW_OPS


@record
class Cost:
    """bytes: loaded and stored. flops: floating-point (and integer) operations. contraction: these
    are multiply-adds of a contraction, of element type `dtype`."""

    bytes: int = 0
    flops: int = 0
    contraction: bool = False
    dtype: str = ""


def seconds(cost: Cost, device: Device) -> float:
    """The roofline time of an op."""
    if not cost.bytes and not cost.flops:
        return 0.0
    return max(cost.bytes / device.bandwidth, cost.flops / rate(cost, device)) + device.launch


def rate(cost: Cost, device: Device) -> float:
    """The rate of a device for this kind of work, in operations per second."""
    return device.matmul.get(cost.dtype, device.vector) if cost.contraction else device.vector


def cost_of(op: ir.Operation) -> Cost:
    """The cost of an op of the dialect. That of a `gflow.fused` op is its loads, its stores, and the ops in its
    region."""
    name = op.name.removeprefix("gflow.")
    if (
        name in VIEW_OPS
        or name not in OPS
        or name in ("constant", "yield", ENGINE_YIELD, BARRIER, WAIT)
    ):
        return Cost()
    results = [builder.type_of(v) for v in op.results]
    return Cost(sum(t.nbytes for t in results) + _loaded(op), *_work(op, name, results))


def work_of(op: ir.Operation) -> Cost:
    """The cost of an op without the bytes that it moves."""
    return Cost(0, *_work(op, op.name.removeprefix("gflow.")))


def _work(
    op: ir.Operation, name: str, results: list[TensorType] | None = None
) -> tuple[int, bool, str]:
    """What an op computes: `flops`, `contraction` and `dtype` of its cost."""
    if name in ("fused", "engine"):
        return _fused(op)
    if name != "aten" and (name not in OPS or _is_free(name)):
        return 0, False, ""
    if name in OPS and OPS[name].category == "elementwise":  # operands are as large as the result
        return _arithmetic(name, [], [builder.type_of(op.results[0])]), False, ""
    operands = [builder.type_of(v) for v in op.operands]
    results = results or [builder.type_of(v) for v in op.results]
    if name in _CONTRACTIONS:
        return roughly(_CONTRACTIONS[name](op, operands, results)), True, operands[0].dtype
    if name == "aten":
        flops = _attention(op, operands)
        return roughly(flops), bool(flops), operands[0].dtype if flops else ""
    return _arithmetic(name, operands, results), False, ""


def _arithmetic(name: str, operands: list[TensorType], results: list[TensorType]) -> int:
    """The operations of an op that is no contraction, from `cost` in its declaration."""
    return OPS[name].cost * max((at_most(t.numel) for t in [*operands, *results]), default=0)


@cache
def _is_free(name: str) -> bool:
    """Whether an op of this name computes nothing."""
    category = OPS[name].category
    return category in ("shape", "structure", "distribution") or name in ("constant", "iota")


def _loaded(op: ir.Operation) -> int:
    """The bytes of the operands: each value once, a broadcast with its operand's bytes, a scalar with 0."""
    return sum(t.nbytes for t in {v: _memory(v) for v in op.operands}.values() if t is not None)


def _memory(value: ir.Value) -> TensorType | None:
    """The type of the memory that is read for a value: that of a broadcast's operand; None for a splat constant."""
    if isinstance(value.owner, ir.Block):
        return builder.type_of(value)
    owner = value.owner.operation
    if owner.name == "gflow.broadcast":
        return _memory(owner.operands[0])
    if owner.name == "gflow.constant":
        elements = owner.attributes["value"]
        if isinstance(elements, ir.DenseElementsAttr) and elements.is_splat:
            return None
    return builder.type_of(value)


def _fused(op: ir.Operation) -> tuple[int, bool, str]:
    total, contraction, dtype = 0, False, ""
    for view in op.regions[0].blocks[0].operations:
        inner = view.operation
        flops, multiplies, of = _work(inner, inner.name.removeprefix("gflow."))
        total += flops
        if multiplies:
            contraction, dtype = True, of
    return total, contraction, dtype


def _attention(op: ir.Operation, operands: list[TensorType]) -> int:
    """Operations of a call of PyTorch's attention: two products forward, five backward; 0 for other
    calls. Query and key are the first arguments, after the gradient of the output if there is one."""
    overload = ir.StringAttr(op.attributes["overload"]).value
    if "scaled_dot_product" not in overload or "attention" not in overload:
        return 0
    backward = "backward" in overload
    arguments = json.loads(ir.StringAttr(op.attributes["args"]).value)[0]
    query, key = (operands[arguments[int(backward) + i]["t"]] for i in range(2))
    return (10 if backward else 4) * query.numel * key.shape[-2]


def _products(op: ir.Operation, q: TensorType, k: TensorType, count: int) -> int:
    """Operations of `count` products of an attention's size: two forward, five backward. What `causal` and a window
    hide is left out; documents, whose lengths are not known, hide nothing here."""
    rows, keys = q.shape[1], k.shape[1]
    limits = bounds(read(OPS[op.name.removeprefix("gflow.")], op.attributes))
    if limits == (None, None) or varies(rows) or varies(keys) or not rows:
        return 2 * count * q.numel * keys
    return 2 * count * (q.numel // rows) * visible_pairs(rows, keys, *limits)


def visible_pairs(rows: int, keys: int, left: int | None, right: int | None) -> int:
    """The pairs of a position i and a key j with i - left <= j <= i + right; None: no limit."""

    def up_to(bound: int) -> int:
        """The pairs with j <= i + bound."""

        def first(count: int) -> int:  # the sum of min(n, keys) for n = 1 … count
            inside = min(max(count, 0), keys)
            return inside * (inside + 1) // 2 + max(count - keys, 0) * keys

        return first(bound + rows) - first(bound)

    most = rows * keys if right is None else up_to(right)
    return most if left is None else max(0, most - up_to(-left - 1))


def _matmul(op: ir.Operation, operands: list[TensorType], results: list[TensorType]) -> int:
    return 2 * results[0].numel * operands[0].shape[-1]


def _packed(op: ir.Operation, operands: list[TensorType], results: list[TensorType]) -> int:
    attrs = read(OPS["packed_product"], op.attributes)
    return 2 * results[0].numel * packed_k(operands[0], attrs)


def _convolution(op: ir.Operation, operands: list[TensorType], results: list[TensorType]) -> int:
    """Two operations for each output element and weight of one output channel."""
    attrs = read(OPS[op.name.removeprefix("gflow.")], op.attributes)
    match op.name:
        case "gflow.convolution":
            out, weight = results[0], operands[1]
        case "gflow.convolution_input_grad":
            out, weight = operands[0], operands[1]
        case _:
            out, weight = operands[1], results[0]
    _, i, spatial = kernel_dims(attrs["layout"], weight.rank)
    return 2 * out.numel * weight.shape[i] * prod(weight.shape[d] for d in spatial)


_CONTRACTIONS: dict[str, Callable[[ir.Operation, list[TensorType], list[TensorType]], int]] = {
    "matmul": _matmul,
    "scaled_matmul": _matmul,
    "packed_product": _packed,
    "quantized_matmul": _matmul,
    "convolution": _convolution,
    "convolution_input_grad": _convolution,
    "convolution_weight_grad": _convolution,
    "attention": lambda op, operands, results: _products(op, operands[0], operands[1], 2),
    "attention_grad": lambda op, operands, results: _products(op, operands[1], operands[2], 5),
}

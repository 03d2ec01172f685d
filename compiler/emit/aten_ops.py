"""Ops that run as ATen calls because gflow has no kernel for them."""

from __future__ import annotations

import json

from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import AtenStep, TensorRef
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from ..ir.errors import CannotLower
from ..ir.ssa import Op
from .placement import Placement


def call(b: Placement, o: Op) -> None:
    """Add the call of a `gflow.aten`."""
    attrs = read(OPS["aten"], o.op.attributes)
    outputs = tuple(b.ref(r) for r in o.results)
    inputs = tuple(b.ref(v) for v in o.operands)
    b.steps.append(AtenStep(attrs["overload"], attrs["args"], inputs, outputs, b.label(o)))


def position(b: Placement, o: Op) -> None:
    """Add the call of argmax or argmin, the reductions that do not run in region kernels."""
    attrs = read(OPS["reduce"], o.op.attributes)
    args = [{"t": 0}, attrs["dims"][0]]
    x, r = b.ref(o.operands[0]), b.ref(o.results[0])
    b.aten(b.label(o), f"aten.{attrs['kind']}.default", args, [x], r)


def gather(b: Placement, o: Op) -> None:
    """Add the call of aten.gather for a `gflow.gather`."""
    dim = read(OPS["gather"], o.op.attributes)["dim"]
    inputs = [b.ref(v) for v in o.operands]
    b.aten(
        b.label(o), "aten.gather.default", [{"t": 0}, dim, {"t": 1}], inputs, b.ref(o.results[0])
    )


def take(b: Placement, o: Op) -> None:
    """Add the call of aten.index_select for a `gflow.take`, with indices flattened to one dimension."""
    x, index = o.operands
    dim = read(OPS["take"], o.op.attributes)["dim"]
    rank = b.body.types[index].rank
    out = merged(b, o.results[0], dim, rank)
    inputs = [b.ref(x), dense(b, index, 0, rank)]
    b.aten(b.label(o), "aten.index_select.default", [{"t": 0}, dim, {"t": 1}], inputs, out)


def index_add(b: Placement, o: Op) -> None:
    """Add the call of aten.index_add for a `gflow.index_add`, with indices flattened to one dimension."""
    x, index, source = o.operands
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    rank = b.body.types[index].rank
    inputs = [b.ref(x), dense(b, index, 0, rank), dense(b, source, dim, rank)]
    args = [{"t": 0}, dim, {"t": 1}, {"t": 2}]
    b.aten(b.label(o), "aten.index_add.default", args, inputs, b.ref(o.results[0]))


def merged(b: Placement, value: int, low: int, rank: int) -> TensorRef:
    """A dense value with dimensions low … low + rank - 1 merged into one."""
    ref = b.ref(value)
    shape = ref.type.shape
    merged = TensorType(shape[low : low + rank], "i1").numel
    new = (*shape[:low], merged, *shape[low + rank :])
    return TensorRef(ref.place, TensorType(new, ref.type.dtype), row_major_strides(new))


def dense(b: Placement, value: int, low: int, rank: int) -> TensorRef:
    """As `merged`; with rank 1 there is nothing to merge, and the value may have any strides.

    Raises:
        CannotLower: dimensions are to be merged, and the value isn't dense.
    """
    if rank == 1:
        return b.ref(value)
    if not is_row_major(b.body.types[value].shape, b.strides(value)):
        raise CannotLower(
            "an index of more than one dimension must be dense; run gflow-materialize first"
        )
    return merged(b, value, low, rank)


# -- attention

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


def attention(b: Placement, o: Op) -> None:
    """Add the call of PyTorch's CPU kernel for a `gflow.attention`."""
    _attention(b, o, f"{ATTENTION}.default", 3, 1)


def attention_grad(b: Placement, o: Op) -> None:
    """Add the call of PyTorch's CPU kernel for a `gflow.attention_grad`."""
    _attention(b, o, f"{ATTENTION}_backward.default", 6, 3)


def _attention(b: Placement, o: Op, overload: str, needed: int, swapped_results: int) -> None:
    """Add the call of an attention kernel, whose tensors are [batch, head, position, channel].

    Raises:
        CannotLower: the op has dropout, a gradient of a bias, a bias of another dtype, or v with other channels than q.
    """
    attrs = read(OPS[o.name], o.op.attributes)
    types = [b.body.types[v] for v in o.operands]
    q, _, v = types[:3] if needed == 3 else types[1:4]
    found = extras(types, needed)
    bias = found.bias
    plain = (bias is None or types[bias].dtype == q.dtype) and q.shape[3] == v.shape[3]
    plain = plain and not attrs["window"] and found.documents is None
    if attrs["dropout"] or attrs.get("bias_grad") or not plain:
        raise CannotLower(
            f"gflow.{o.name} on the CPU supports no dropout, no gradient of a bias, no bias of another element type, "
            "no window, no documents and no other channels of v; trace the graph on the CPU, where PyTorch decomposes "
            "such a call"
        )
    heads_first = min(needed, 5)
    inputs = [b.ref(x) for x in o.operands]
    inputs[:heads_first] = [swapped(ref) for ref in inputs[:heads_first]]
    outputs = [b.ref(r) for r in o.results]
    outputs[:swapped_results] = [swapped(ref) for ref in outputs[:swapped_results]]
    args = [{"t": i} for i in range(needed)]
    keywords = {"scale": attrs["scale"]}
    if bias is not None:
        keywords["attn_mask"] = {"t": bias}
    text = json.dumps([[*args, 0.0, attrs["causal"]], keywords])
    b.steps.append(AtenStep(overload, text, tuple(inputs), tuple(outputs), b.label(o)))


def swapped(ref: TensorRef) -> TensorRef:
    """A view with positions and heads exchanged."""
    (n, t, h, c), (sn, st, sh, sc) = ref.type.shape, ref.strides
    return TensorRef(ref.place, TensorType((n, h, t, c), ref.type.dtype), (sn, sh, st, sc))


# -- convolutions


def convolution(b: Placement, o: Op) -> None:
    """Add the call of aten.convolution or aten.convolution_backward for a convolution or one of its gradients."""
    attrs = read(OPS[o.name], o.op.attributes)
    first, second = (channels_first(b.ref(v), attrs["layout"]) for v in o.operands)
    out = channels_first(b.ref(o.results[0]), attrs["layout"])
    if out.type.numel == 0:
        return
    walk = [list(attrs[name]) for name in ("stride", "padding", "dilation")]
    geometry = [*walk, False, [0] * (out.type.rank - 2), attrs["groups"]]
    if o.name == "convolution":
        args = [{"t": 0}, {"t": 1}, None, *geometry]
        b.aten(b.label(o), "aten.convolution.default", args, [first, second], out)
        return
    # ATen reads only the shape of the tensor whose gradient it computes: strides of 0 suffice
    shape = TensorRef(first.place, out.type, (0,) * out.type.rank)
    if o.name == "convolution_input_grad":
        inputs, mask = [first, shape, second], [True, False, False]
    else:
        inputs, mask = [second, first, shape], [False, True, False]
    args = [{"t": 0}, {"t": 1}, {"t": 2}, None, *geometry, mask]
    b.aten(b.label(o), "aten.convolution_backward.default", args, inputs, out)


def channels_first(ref: TensorRef, layout: str) -> TensorRef:
    """A view of an activation or a weight with the dimension order NC* or OI*."""
    if layout == "NC*":
        return ref
    n, c, spatial = conv_dims(layout, ref.type.rank)
    order = (n, c, *spatial)
    ty = TensorType(tuple(ref.type.shape[d] for d in order), ref.type.dtype)
    return TensorRef(ref.place, ty, tuple(ref.strides[d] for d in order))

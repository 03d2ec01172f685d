"""Attention, forward and backward, by the library kernels in PyTorch: FlashAttention's and cuDNN's.

They support half precision without a bias, a window or documents. Attention with dropout is not replaced, since their
random numbers differ.
"""

from __future__ import annotations

import json

from gflow.compiler.emit.aten_ops import swapped
from gflow.compiler.ir.ssa import Op
from gflow.compiler.targets.devices import FLASH_ATTENTION, TMA
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.program import AtenStep, TensorRef
from gflow.dialects.types import HALVES, TensorType

from ..program_builder import Builder

_FLASH = "aten._scaled_dot_product_flash_attention"
_CUDNN = "aten._scaled_dot_product_cudnn_attention"
#: the results of a forward call: the result, the log-sum-exp, and values for the backward
_UNUSED = (None,) * 7
#: the inputs of a backward call: dy, q, k, v and the forward's result; log-sum-exp; two unused words
_GIVEN, _SUMS, _WORDS = 5, 5, 6


def calls(b: Builder, o: Op) -> dict[str, AtenStep]:
    """The calls that compute an attention op, by library; empty if no library supports it."""
    first = 0 if o.name == "attention" else 1
    attrs = read(OPS[o.name], o.op.attributes)
    types = [b.body.types[v] for v in o.operands]
    q, k, v = types[first : first + 3]
    found = extras(types, 6 if first else 3)
    halves = q.dtype in HALVES and q.shape[3] % 8 == 0 and q.shape[3] == v.shape[3]
    # with fewer rows than columns, libraries differ in the alignment of the causal mask
    square = not attrs["causal"] or q.shape[1] == k.shape[1]
    empty = any(ty.numel == 0 for ty in types)
    if (
        found.bias is not None
        or found.documents is not None
        or attrs["window"]
        or attrs["dropout"]
        or not halves
        or not square
        or empty
        or not b.target.has(FLASH_ATTENTION)
    ):
        return {}
    known = {"FlashAttention": _backward(b, o, _FLASH) if first else _forward(b, o, _FLASH)}
    if b.target.has(TMA) and q.shape[3] <= 128 and q.shape[2] == k.shape[2]:
        known["cuDNN"] = _backward(b, o, _CUDNN) if first else _forward(b, o, _CUDNN)
    return known


def _forward(b: Builder, o: Op, overload: str) -> AtenStep:
    attrs = read(OPS[o.name], o.op.attributes)
    inputs = tuple(swapped(b.ref(v)) for v in o.operands[:3])
    y, sums = (b.ref(r) for r in o.results)
    args: list[object] = [{"t": i} for i in range(3)]
    if overload == _CUDNN:
        args += [None, True]
    args += [0.0, attrs["causal"], False]
    text = json.dumps([args, {"scale": attrs["scale"]}])
    outputs = (swapped(y), _sums(sums, overload), *_UNUSED)
    return AtenStep(f"{overload}.default", text, inputs, outputs, b.label(o))


def _backward(b: Builder, o: Op, overload: str) -> AtenStep:
    attrs = read(OPS[o.name], o.op.attributes)
    tensors = [swapped(b.ref(v)) for v in o.operands[:_GIVEN]]
    sums = b.ref(o.operands[_SUMS])
    # without dropout the generator's state is not read; any two words will do
    kind = "i64" if overload == _CUDNN else "ui64"
    words = TensorRef(sums.place, TensorType((2,), kind), (1,))
    inputs = (*tensors, _sums(sums, overload), words)
    rows, columns = inputs[1].type.shape[2], inputs[2].type.shape[2]
    seed = [{"t": _WORDS}, {"t": _WORDS}]
    args: list[object] = [{"t": i} for i in range(_SUMS + 1)]
    if overload == _CUDNN:
        args += [*seed, None, None, None, rows, columns, 0.0, attrs["causal"]]
    else:
        args += [None, None, rows, columns, 0.0, attrs["causal"], *seed]
    text = json.dumps([args, {"scale": attrs["scale"]}])
    outputs = tuple(swapped(b.ref(r)) for r in o.results)
    return AtenStep(f"{overload}_backward.default", text, inputs, outputs, b.label(o))


def _sums(ref: TensorRef, overload: str) -> TensorRef:
    """The log-sum-exp as the library expects it; cuDNN's has an additional dimension of size 1."""
    if overload != _CUDNN:
        return ref
    return TensorRef(ref.place, TensorType((*ref.type.shape, 1), ref.type.dtype), (*ref.strides, 1))

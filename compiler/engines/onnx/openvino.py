"""The part of ONNX that OpenVINO computes correctly: it silently computes float64 in float32, and i64 in i32."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.mlir import ir

from ..form import Call
from .rows import FORM as ONNX

#: ops whose i64 operands are positions in tensors, which fit in 32 bits
_INDEXED = ("take", "gather", "index_add", "index_copy")
_POSITIONS = frozenset((*_INDEXED, "max_pool", "max_pool_grad", "constant"))
_ARGS = ("argmax", "argmin")


def _refuse(call: Call) -> str:
    found = ONNX.refuse(call)
    if found:
        return found
    types = (*call.operands, *call.results)
    if any(ty.numel == 0 for ty in call.results):
        return "OpenVINO takes some tensors without elements for 0-d ones"
    # data operands are not positions
    if call.name in _INDEXED:
        types = (call.operands[0],)
        if call.name == "gather" and not _within(call):
            return "OpenVINO's GatherElements takes as many positions as there are elements, but along one dimension"
    elif call.name in _POSITIONS or call.attrs.get("kind") in _ARGS:
        types = call.operands[:1]
    if any(ty.dtype == "i64" for ty in types) and call.name != "constant":
        return "OpenVINO computes i64 in 32 bits"
    if call.name == "random" or call.attrs.get("dropout"):
        return "random numbers are made of i64, which OpenVINO computes in 32 bits"
    if call.name == "pad" and not _is_constant(call.op.operands[1]):
        return "OpenVINO pads with a constant alone"
    return ""


def _within(call: Call) -> bool:
    x, index = call.operands[:2]
    dim = call.attrs["dim"]
    return bool(x.rank) and all(
        a == b for d, (a, b) in enumerate(zip(x.shape, index.shape)) if d != dim
    )


def _is_constant(value: ir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name == "gflow.constant"


FORM = replace(ONNX, name="ONNX for OpenVINO", dtypes=ONNX.dtypes - {"f64"}, refuse=_refuse)

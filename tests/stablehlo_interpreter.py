"""StableHLO's reference interpreter on tensors."""

from __future__ import annotations

import torch
from ir_interpreter import DTYPES

from gflow.dialects.constants import element_bytes, is_splat
from gflow.dialects.mlir import ir, stablehlo
from gflow.dialects.types import TensorType, tensor_type


def interpret(module: ir.Module, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run on the reference interpreter."""
    with module.context:
        given = [_attribute(a) for a in args]
        return [_tensor(a) for a in stablehlo().eval_module(module, given)]


def _attribute(x: torch.Tensor) -> ir.Attribute:
    dtype = next(name for name, known in DTYPES.items() if known == x.dtype)
    raw = x.contiguous().view(torch.uint16) if dtype == "bf16" else x.contiguous()
    return ir.DenseElementsAttr.get(raw.numpy(), type=TensorType(tuple(x.shape), dtype).mlir())


def _tensor(attribute: ir.Attribute) -> torch.Tensor:
    ty = tensor_type(attribute.type)
    if ty.numel == 0:
        return torch.empty(ty.shape, dtype=DTYPES[ty.dtype])
    data = torch.frombuffer(bytearray(element_bytes(attribute, ty)), dtype=DTYPES[ty.dtype])
    return (data.expand(ty.numel) if is_splat(attribute) else data).reshape(ty.shape)

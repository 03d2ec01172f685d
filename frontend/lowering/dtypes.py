"""Element types between torch and the dialect, and PyTorch's type promotion over lowered values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gflow.dialects.types import HALVES, NO_KERNELS
from gflow.runtime.tensors import DTYPES

#: the dialect's names → PyTorch's dtypes, and the inverse
TO_TORCH: dict[str, torch.dtype] = DTYPES
TO_MLIR: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


class LoweringError(RuntimeError):
    """A trace cannot be lowered; the message names the author's line."""


class Unsupported(Exception):
    """A rule does not support a call, which is then decomposed or becomes `gflow.aten`."""


def mlir_dtype(dtype: torch.dtype) -> str:
    """The dialect's name of a torch dtype.

    Raises:
        Unsupported: the dialect has no such element type (quantized, …).
    """
    found = TO_MLIR.get(dtype)
    if found is None:
        raise Unsupported(f"element type {dtype}")
    return found


def opmath(dtype: str) -> str:
    """The dtype in which arithmetic on `dtype` is computed: float32 for half precision."""
    return "f32" if dtype in HALVES else dtype


def is_float(dtype: str) -> bool:
    """Whether a dtype of the dialect is a float."""
    return dtype in ("f32", "f64", "f16", "bf16")


def has_kernels(dtype: str) -> bool:
    """Whether gflow computes with a dtype of the dialect; complex numbers and 8-bit floats are left to PyTorch."""
    return dtype not in NO_KERNELS


def default_float() -> str:
    """PyTorch's default dtype, by the dialect's name."""
    return TO_MLIR[torch.get_default_dtype()]


def _scalar_dtype(value: bool | int | float | complex) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    if isinstance(value, float):
        return torch.get_default_dtype()
    raise Unsupported("complex numbers")


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """ATen's `combine_categories`: the dtype of lower priority counts only if its category is higher."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def result_dtype(operands: Iterable[Any]) -> str:
    """`torch.result_type` of values and Python numbers.

    Raises:
        Unsupported: there are no kernels on an operand's type.
    """
    operands = list(operands)
    python = (bool, int, float, complex)
    has_tensor = any(not isinstance(x, python) and not x.number for x in operands)
    by_rank: list[torch.dtype | None] = [None, None, None]  # tensors, 0-d tensors, numbers
    for operand in operands:
        if isinstance(operand, python):
            rank, dtype = 2, _scalar_dtype(operand)
        else:
            dtype = TO_TORCH[operand.dtype]
            if not has_kernels(operand.dtype):
                raise Unsupported(f"tensors of {dtype}")
            rank = 0 if operand.shape else 1
            if operand.number and has_tensor:
                rank = 2
                if dtype.is_floating_point:
                    dtype = torch.get_default_dtype()
        known = by_rank[rank]
        by_rank[rank] = dtype if known is None else _promote(known, dtype)
    found = _combine(by_rank[0], _combine(by_rank[1], by_rank[2]))
    assert found is not None
    return TO_MLIR[found]


def _promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    try:
        return torch.promote_types(a, b)
    except RuntimeError as error:
        raise Unsupported(str(error)) from None

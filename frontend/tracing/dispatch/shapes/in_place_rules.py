"""Shape rules of elementwise ops that update a tensor in place, for the common case.

For each such op on a traced tensor, functionalization runs the op on tensors without data first. PyTorch's rules for
that are in Python, and take 0.15 ms (`addcmul_`) to 1.7 ms (`hardswish_`). Here floating-point operands of the shape
and dtype of the tensor, and numbers, take 2 µs; PyTorch's rules decide about others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import global_decomposition_table

_aten = torch.ops.aten
ELEMENTWISE = (
    _aten.hardtanh_.default, _aten.hardswish_.default, _aten.hardsigmoid_.default, _aten.leaky_relu_.default,
    _aten.elu_.default, _aten.mish_.default, _aten.silu_.default, _aten.clamp_.default, _aten.clamp_min_.default,
    _aten.addcmul_.default, _aten.addcdiv_.default, _aten.lerp_.Scalar, _aten.add_.Tensor, _aten.sub_.Tensor,
    _aten.mul_.Tensor, _aten.div_.Tensor,
)  # fmt: skip
_ARITHMETIC = (_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor, _aten.div_.Tensor)
#: types of numbers, traced ones too: none of any value changes the type of a floating-point tensor
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _original(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """PyTorch's own rule in Python, the one that it registers; None if it is in C++."""
    tables = (
        global_decomposition_table[kind] for kind in ("meta", "post_autograd", "pre_autograd")
    )
    return next((table[op] for table in tables if op in table), None)


def _rule(original: Callable[..., Any], numbers: bool) -> Callable[..., Any]:
    """numbers: whether an operand may be a tensor of one number of any real type, as PyTorch passes numbers on."""

    def rule(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dtype, shape = self.dtype, self.shape
        if dtype in _FLOATS and _fixed(shape):
            for arg in (*args, *kwargs.values()):
                if isinstance(arg, torch.Tensor):
                    if numbers and arg.dim() == 0 and not arg.is_complex():
                        continue
                    if arg.dtype is not dtype or not _fixed(arg.shape) or arg.shape != shape:
                        break
                elif type(arg) not in _NUMBERS:
                    break
            else:
                return self
        return original(self, *args, **kwargs)

    return rule


def _fixed(shape: torch.Size) -> bool:
    """Whether no size is dynamic: comparing such a size would decide what a program is for."""
    return all(type(n) is int for n in shape)


@contextlib.contextmanager
def quick_rules() -> Iterator[None]:
    """Active while a graph is traced."""
    library = torch.library.Library("aten", "IMPL")
    for op in ELEMENTWISE:
        original = _original(op)
        if original is not None:
            rule = _rule(original, op in _ARITHMETIC)
            library.impl(op, rule, "Meta", allow_override=True)
    try:
        yield
    finally:
        library._destroy()

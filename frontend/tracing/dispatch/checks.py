"""Checks of element types and sizes that PyTorch's kernels make and its shape rules leave out: without them a graph
would compute what eager refuses, or leave out a call that eager refuses because nothing reads its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)


def _dtypes(args: tuple[Any, ...]) -> list[torch.dtype]:
    return [a.dtype for a in args if isinstance(a, Tensor)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _same(args: tuple[Any, ...]) -> str | None:
    found = _dtypes(args)
    if len(set(found)) <= 1:
        return None
    return (
        f"takes tensors of one dtype, got {', '.join(map(_name, found))}; convert one of them with "
        ".to()"
    )


def _norm(args: tuple[Any, ...]) -> str | None:
    """One dtype; statistics and weights of a half-precision input may be float32."""
    found = _dtypes(args)
    if found[0] in _HALVES and set(found[1:]) <= {torch.float32}:
        return None
    return _same(args)


def _labels(args: tuple[Any, ...]) -> str | None:
    dtype = args[1].dtype
    if dtype in (torch.int64, torch.uint8):
        return None
    return f"takes class indices of dtype int64, got {_name(dtype)}; convert them with .long()"


def _floating(args: tuple[Any, ...]) -> str | None:
    dtype = args[0].dtype
    if dtype.is_floating_point or dtype.is_complex or args[2]:
        return None
    return f"takes a floating-point tensor, got {_name(dtype)}; convert it with .float()"


def _power(args: tuple[Any, ...]) -> str | None:
    base, exponent = args[0].dtype, args[1]
    if base.is_floating_point or base.is_complex or not isinstance(exponent, int) or exponent >= 0:
        return None
    return f"takes no negative integer power of {_name(base)}; convert the tensor with .float()"


def _ordered(args: tuple[Any, ...]) -> str | None:
    if args[0].dtype != torch.bool:
        return None
    return "takes no bool; convert the tensor with .to(torch.uint8)"


def _output_padding(args: tuple[Any, ...]) -> str | None:
    stride, dilation, transposed, padding = args[3], args[5], args[6], args[7]
    if not transposed or not padding:
        return None
    rank = args[0].dim() - 2
    stride, dilation, padding = (
        [*x, *x[-1:] * (rank - len(x))] for x in (stride, dilation, padding)
    )
    if all(p < s or p < d for p, s, d in zip(padding, stride, dilation)):
        return None
    return f"takes an output_padding smaller than stride or dilation, got {list(padding)}"


def _difference(args: tuple[Any, ...]) -> str | None:
    if any(isinstance(a, bool) for a in args[:2]) or torch.bool in _dtypes(args[:2]):
        return "takes no bool; use ^ or logical_xor() for masks, or convert with .to()"
    return None


def _known(*sizes: Any) -> bool:
    """Whether sizes are numbers: those of a dimension that varies are symbols."""
    return all(type(n) is int for n in sizes)


def _some(args: tuple[Any, ...]) -> str | None:
    if 0 not in [n for n in args[0].shape if _known(n)]:
        return None
    return "takes no empty tensor without a dimension to reduce; pass dim="


def _lapack(args: tuple[Any, ...]) -> str | None:
    if args[0].dtype not in _HALVES:
        return None
    return f"takes no {_name(args[0].dtype)}; convert the tensor with .float()"


def _viewed(args: tuple[Any, ...]) -> str | None:
    """What a view as wider elements asks of the memory."""
    tensor, dtype = args
    old, new = tensor.element_size(), dtype.itemsize
    if new <= old:
        return None
    more, names = new // old, f"{_name(tensor.dtype)} as {_name(dtype)}"
    if tensor.dim() == 0:
        return f"takes no 0-d tensor to view {names}; reshape it first"
    size, strides, offset = tensor.shape[-1], tensor.stride(), tensor.storage_offset()
    if not _known(size, offset, *strides):
        return None
    if size % more == 0 and strides[-1] == 1 and not any(n % more for n in (offset, *strides[:-1])):
        return None
    return (
        f"views {names} only where the last size, the other strides and the offset are multiples of {more} and the "
        f"last stride is 1, got {[*tensor.shape]}, {[*strides]} and {offset}; copy the tensor first (.clone())"
    )


_Check = Callable[[tuple[Any, ...]], "str | None"]

CHECKS: dict[Any, _Check] = {
    aten.mm.default: _same,
    aten.bmm.default: _same,
    aten.mv.default: _same,
    aten.addmm.default: _same,
    aten.addmv.default: _same,
    aten.baddbmm.default: _same,
    aten.binary_cross_entropy.default: _same,
    aten.native_layer_norm.default: _norm,
    aten.native_group_norm.default: _norm,
    aten._native_batch_norm_legit_functional.default: _norm,
    aten._native_batch_norm_legit.no_stats: _norm,
    aten._native_batch_norm_legit_no_training.default: _norm,
    aten.nll_loss_forward.default: _labels,
    aten.nll_loss2d_forward.default: _labels,
    aten.pow.Tensor_Scalar: _power,
    aten.topk.default: _ordered,
    aten.convolution.default: _output_padding,
    aten.sub.Tensor: _difference,
    aten.sub.Scalar: _difference,
    aten.rsub.Tensor: _difference,
    aten.rsub.Scalar: _difference,
    aten.heaviside.default: _same,
    aten.max.default: _some,
    aten.min.default: _some,
    aten.view.dtype: _viewed,
    **{getattr(aten.linalg_pinv, o): _lapack for o in aten.linalg_pinv.overloads()},
    aten._softmax.default: _floating,
    aten._log_softmax.default: _floating,
}

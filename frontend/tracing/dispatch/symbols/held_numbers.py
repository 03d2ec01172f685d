"""Numbers that the dtype in which a kernel computes cannot represent: `uint8.fill_(1000)`.

PyTorch's kernels refuse them, and its shape rules do not: a graph would wrap them around, or make them infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
#: computes the dtype that a call's numbers are converted to; None if it represents all of them
_Dtype = Callable[[tuple[Any, ...], dict[str, Any]], "torch.dtype | None"]


def can_hold(dtype: torch.dtype, number: Any) -> bool:
    """Whether PyTorch's kernels convert a number to a dtype without an error. Negative integers wrap around in
    unsigned dtypes, and all floating-point dtypes have infinities."""
    if type(number) not in (int, float) or dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    bounds = torch.iinfo(dtype)
    if type(number) is int and not bounds.min:
        return abs(number) <= bounds.max
    return bounds.min <= number <= bounds.max  # False for NaN


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    return args[0].dtype


def _filled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The dtype of a filled tensor. For one element of half precision the kernel converts through a wider dtype."""
    first = args[0]
    like = first.dtype if isinstance(first, Tensor) else None
    dtype = kwargs.get("dtype") or like
    if dtype not in (torch.float16, torch.bfloat16):
        return dtype
    sizes = [a for a in args if isinstance(a, (list, tuple))]
    shape = sizes[0] if sizes else first.shape if like is not None else ()
    return None if all(type(n) is int and n == 1 for n in shape) else dtype


def _common(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The dtype to which tensors and numbers, except alpha, are promoted: tensors with dimensions first, then 0-d
    tensors, then numbers. Only dtypes of tensors are read, since the tensors may belong to another mode."""
    found = [*args, *(v for k, v in kwargs.items() if k != "alpha")]
    tensors = [v for v in found if isinstance(v, Tensor)]
    terms: list[Any] = [torch.empty(1, dtype=t.dtype) for t in tensors if t.dim()]
    terms += [torch.empty((), dtype=t.dtype) for t in tensors if not t.dim()]
    terms += [v for v in found if isinstance(v, (int, float))]
    if len(terms) < 2:
        return tensors[0].dtype if tensors else None
    dtype = torch.result_type(*terms[:2])
    for term in terms[2:]:
        dtype = torch.result_type(torch.empty(1, dtype=dtype), term)
    return dtype


def _whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The promoted dtype if it is one of integers; kernels compute half precision in wider dtypes."""
    dtype = _common(args, {})
    return None if dtype is None or dtype.is_floating_point or dtype.is_complex else dtype


#: op → (the dtype that its numbers are converted to, their positions among the arguments, their names)
NUMBERS: dict[Any, tuple[_Dtype, tuple[int, ...], tuple[str, ...]]] = {
    aten.full.default: (_filled, (1,), ()),
    aten.full_like.default: (_filled, (1,), ()),
    aten.new_full.default: (_filled, (2,), ()),
    aten.scalar_tensor.default: (_filled, (0,), ()),
    aten.fill.Scalar: (_filled, (1,), ()),
    aten.fill_.Scalar: (_filled, (1,), ()),
    aten.masked_fill.Scalar: (_first, (2,), ()),
    aten.masked_fill_.Scalar: (_first, (2,), ()),
    aten.index_fill.int_Scalar: (_first, (3,), ()),
    aten.index_fill_.int_Scalar: (_first, (3,), ()),
    aten.scatter.value: (_first, (3,), ()),
    aten.scatter_.value: (_first, (3,), ()),
    aten.constant_pad_nd.default: (_first, (2,), ()),
    aten._unsafe_masked_index.default: (_first, (3,), ()),
    aten.threshold.default: (_first, (1, 2), ()),
    aten.hardtanh.default: (_first, (1, 2), ()),
    aten.hardshrink.default: (_first, (1,), ()),
    aten.clamp.default: (_common, (1, 2), ("min", "max")),
    aten.clamp_min.default: (_common, (1,), ()),
    aten.clamp_max.default: (_common, (1,), ()),
    aten.add.Tensor: (_common, (), ("alpha",)),
    aten.sub.Tensor: (_common, (), ("alpha",)),
    aten.rsub.Tensor: (_common, (), ("alpha",)),
    aten.addcmul.default: (_whole, (), ("value",)),
    aten.pow.Tensor_Scalar: (_whole, (1,), ()),
}


def _alpha_problem(args: tuple[Any, ...], alpha: Any) -> str | None:
    """Why `alpha` of a sum or difference is refused, by the promoted dtype of its operands; None if it is not."""
    if type(alpha) not in (bool, float):
        return None
    dtype = _common(args[:2], {})
    if dtype is None or type(alpha) is bool:
        fits = dtype is None or dtype == torch.bool
    else:
        fits = dtype.is_floating_point or dtype.is_complex
    if fits:
        return None
    name = str(dtype).removeprefix("torch.")
    return f"takes no alpha={alpha!r} where the result is {name}; pass a number of its kind"


def number_problem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why a number among the arguments of a call is refused; None if none is."""
    entry = NUMBERS.get(func)
    if entry is None:
        return None
    dtype_of, places, names = entry
    numbers = [args[p] for p in places if p < len(args)]
    numbers += [kwargs[n] for n in names if n in kwargs]
    if "alpha" in kwargs and (problem := _alpha_problem(args, kwargs["alpha"])) is not None:
        return problem
    if not any(type(n) in (int, float) for n in numbers):
        return None
    dtype = dtype_of(args, kwargs)
    if dtype is None:
        return None
    for number in numbers:
        if not can_hold(dtype, number):
            name = str(dtype).removeprefix("torch.")
            instead = "choose another number, or convert the tensor with .to()"
            return f"takes {number!r}, which {name} cannot hold; {instead}"
    return None

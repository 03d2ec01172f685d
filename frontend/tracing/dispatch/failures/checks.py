"""Checks of dtypes and sizes that PyTorch's kernels make and its shape rules omit.

Without them a graph would compute results where eager raises, or drop a call that eager refuses because its result is
unused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
_Check = Callable[[tuple[Any, ...]], "str | None"]
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


def _agree(*places: int) -> _Check:
    """A check that the tensors at these positions have one dtype."""
    return lambda args: _same(tuple(args[p] for p in places if p < len(args)))


def _indexed(place: int, dtypes: tuple[torch.dtype, ...], *same: int) -> _Check:
    """A check that the index at `place` has one of `dtypes`, and that the tensors at `same` have one dtype."""

    def check(args: tuple[Any, ...]) -> str | None:
        indices = _tensors(args[place])
        if not indices:
            return "takes a tensor of indices for at least one dimension; use add_() or copy_()"
        found = [i for i in indices if i.dtype not in dtypes]
        if not found:
            return _agree(*same)(args)
        names = " or ".join(map(_name, dtypes))
        return f"takes indices of dtype {names}, got {_name(found[0].dtype)}; convert them with .long()"

    return check


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def _refused(*dtypes: torch.dtype, instead: str = ".float()") -> _Check:
    """A check that no tensor has one of these dtypes."""

    def check(args: tuple[Any, ...]) -> str | None:
        found = [d for d in _dtypes(args) if d in dtypes]
        return f"takes no {_name(found[0])}; convert the tensor with {instead}" if found else None

    return check


def _norm(args: tuple[Any, ...]) -> str | None:
    """Check for one dtype; statistics and weights of a half-precision input may be float32."""
    found = _dtypes(args)
    if found[0] in _HALVES and set(found[1:]) <= {torch.float32}:
        return None
    return _same(args)


def _labels(args: tuple[Any, ...]) -> str | None:
    dtype = args[1].dtype
    if dtype in (torch.int64, torch.uint8):
        return None
    return f"takes class indices of dtype int64, got {_name(dtype)}; convert them with .long()"


def _classes(args: tuple[Any, ...]) -> str | None:
    return _labels(args) or _agree(0, 2)(args)


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
    """Whether sizes are static; dynamic ones are symbols."""
    return all(type(n) is int for n in sizes)


def _convolved(args: tuple[Any, ...]) -> str | None:
    return _same(args[:3]) or _output_padding(args)


def _divided(args: tuple[Any, ...]) -> str | None:
    if any(d.is_floating_point or d.is_complex for d in _dtypes(args[1:])):
        return None
    return "divides no integers; convert them with .float(), or use // first"


def _first_holds(args: tuple[Any, ...]) -> str | None:
    """Check for one dtype: the kernel's result has the first tensor's dtype, PyTorch's shape rule gives the promoted
    one."""
    return _averaged(args) or _same(args[:2])


def _averaged(args: tuple[Any, ...]) -> str | None:
    return _floating((args[0], None, False))


def _complex(args: tuple[Any, ...]) -> str | None:
    return _refused(torch.bfloat16)(args) or _same(args)


def _step(args: tuple[Any, ...]) -> str | None:
    return _NO_ORDER(args) or _same(args)


def _along_something(args: tuple[Any, ...]) -> str | None:
    """Check that a dimension to find a least or greatest element in is not empty, and that the elements are
    ordered."""
    x, dim = args[0], args[1] if len(args) > 1 else -1
    if x.is_complex():
        return "takes no complex numbers, which have no order; use .abs() or .real"
    if not x.dim() or not _known(size := x.shape[dim]) or size:
        return None
    return f"takes no dimension without elements, got dimension {dim} of {[*x.shape]}"


def _some(args: tuple[Any, ...]) -> str | None:
    if 0 not in [n for n in args[0].shape if _known(n)]:
        return None
    return "takes no empty tensor without a dimension to reduce; pass dim="


def _lapack(args: tuple[Any, ...]) -> str | None:
    if args[0].dtype not in _HALVES:
        return None
    return f"takes no {_name(args[0].dtype)}; convert the tensor with .float()"


def _viewed(args: tuple[Any, ...]) -> str | None:
    """Check the strides and the offset for a view as a wider dtype."""
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


def _grouped(args: tuple[Any, ...]) -> str | None:
    """Check that strides allow a view of another shape, by the rule of ATen's `computeStride`. PyTorch's shape rule
    differs if sizes of 1 are in between."""
    tensor, wanted = args
    shape, strides = [*tensor.shape], tensor.stride()
    if not _known(*shape, *strides, *wanted) or not tensor.numel() or tensor.is_contiguous():
        return None
    left = -tensor.numel() // math.prod(wanted) if -1 in wanted else 1
    new = [left if n == -1 else n for n in wanted]
    at, many, seen, step = len(new) - 1, 1, 1, strides[-1]
    for d in reversed(range(len(shape))):
        many *= shape[d]
        if d and (shape[d - 1] == 1 or strides[d - 1] == many * step):
            continue  # contiguous with the previous dimension
        while at >= 0 and (seen < many or new[at] == 1):
            seen *= new[at]
            at -= 1
        if seen != many:
            return (
                f"gives no view of shape {new} of a tensor of shape {shape} and strides {[*strides]}; use .reshape(), "
                "which copies where it has to"
            )
        if d:
            many, seen, step = 1, 1, strides[d - 1]
    return None


def _boundaries(args: tuple[Any, ...]) -> str | None:
    if not isinstance(args[1], Tensor) or args[1].dim() == 1:
        return None
    return f"takes boundaries of one dimension, got {args[1].dim()}; call it for each row, or searchsorted()"


def _drawn(args: tuple[Any, ...]) -> str | None:
    """Check the weights and the count of `multinomial`."""
    weights, count, *replacement = args
    if not weights.is_floating_point():
        return f"takes weights of a floating-point dtype, got {str(weights.dtype).removeprefix('torch.')}; convert them"
    if not _known(count) or (weights.dim() and not _known(weights.shape[-1])):
        return None
    if count <= 0:
        return f"draws at least one number, got {count}"
    if not weights.dim() or (replacement and replacement[0]) or count <= weights.shape[-1]:
        return None
    return (
        f"draws at most {weights.shape[-1]} of as many weights without replacement, got {count}; pass "
        "replacement=True"
    )


def _added(args: tuple[Any, ...]) -> str | None:
    """Check that the added tensor has the shape of the tensor, except along the dimension."""
    found = _indexed(2, _WIDE, 0, 3)(args)
    tensor, dim, _, source = args[:4]
    if found is not None or not source.dim() or not _known(*tensor.shape, *source.shape):
        return found
    shapes = [[*t.shape] for t in (tensor, source)]
    for shape in shapes:
        if shape and -len(shape) <= dim < len(shape):
            del shape[dim]
    if shapes[0] == shapes[1]:
        return None
    return (
        f"adds a tensor of shape {[*source.shape]} along dimension {dim} of one of shape {[*tensor.shape]}; all other "
        "sizes have to be the same"
    )


def _masks_fit(args: tuple[Any, ...]) -> str | None:
    """Check that each mask among the indices has the sizes of the dimensions that it selects from."""
    tensor, indices = args[:2]
    at = 0
    for index in indices:
        mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
        count = index.dim() if mask else 1
        wanted = [*tensor.shape[at : at + count]]
        at += count
        if mask and _known(*index.shape, *wanted) and [*index.shape] != wanted:
            return (
                f"takes a mask of shape {wanted} for these dimensions of a tensor of shape {[*tensor.shape]}, got "
                f"{[*index.shape]}; expand the mask"
            )
    return None


def _counted(args: tuple[Any, ...]) -> str | None:
    if len(args) < 3 or not _known(args[2]) or args[2] >= 0:
        return None
    return f"counts at least no bins, got minlength={args[2]}"


def _selected(args: tuple[Any, ...]) -> str | None:
    """Check that `select_scatter` writes a slice that exists."""
    tensor, _, dim, index = args
    if not tensor.dim() or not _known(size := tensor.shape[dim], index) or -size <= index < size:
        return None
    return f"takes an index below {size} for dimension {dim} of {[*tensor.shape]}, got {index}"


def _looked_up(args: tuple[Any, ...]) -> str | None:
    if args[0].dim() == 2:
        return None
    return f"takes a weight of two dimensions, got {args[0].dim()}; reshape it to (rows, columns)"


def _interval(args: tuple[Any, ...]) -> str | None:
    low, high = ([*args[1:], 0.0, 1.0] if len(args) == 1 else [*args[1:3], 1.0])[:2]
    if not all(isinstance(n, (int, float)) for n in (low, high)) or low <= high:
        return None
    return f"draws from an interval that does not end before it begins, got {low} to {high}"


def _strided_within(args: tuple[Any, ...]) -> str | None:
    """Check that `as_strided_scatter` writes within the tensor's memory up to its last element, which PyTorch's kernel
    copies including the gaps."""
    tensor, _, size, stride, *offset = args
    begin = offset[0] if offset and offset[0] is not None else tensor.storage_offset()
    own = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not _known(*size, *stride, begin, *own) or 0 in size:
        return None
    last = begin + sum((n - 1) * s for n, s in zip(size, stride))
    there = tensor.storage_offset()
    there += 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    if last < (there if tensor.numel() else 0):
        return None
    return (
        f"writes up to element {last} of a tensor whose memory has {there if tensor.numel() else 0} elements, by size "
        f"{[*size]}, strides {[*stride]} and offset {begin}; choose ones that stay inside of it"
    )


_ORDERLESS = (torch.complex32, torch.complex64, torch.complex128)
_NO_ORDER = _refused(*_ORDERLESS, instead=".abs() or .real, complex numbers have no order")
_WIDE = (torch.int32, torch.int64)
_put = _indexed(1, (*_WIDE, torch.uint8, torch.bool), 0, 2)


def _every(names: str, check: _Check) -> dict[Any, _Check]:
    """One check for all overloads of ops, and for their in-place forms."""
    return dict.fromkeys(_overloads(names), check)


def _overloads(names: str) -> list[Any]:
    packets = [getattr(aten, n, None) for name in names.split() for n in (name, f"{name}_")]
    return [getattr(p, o) for p in packets if p is not None for o in p.overloads()]


CHECKS: dict[Any, _Check] = {
    **_every("clamp clamp_min clamp_max ceil floor trunc sign hardtanh nansum sort", _NO_ORDER),
    **_every("relu", _refused(*_ORDERLESS, torch.bool)),
    **_every("std var std_mean var_mean", _averaged),
    **_every("soft_margin_loss huber_loss", _first_holds),
    **_every("dist", _refused(torch.bool)),
    **_every("put", _indexed(1, (torch.int64,), 0, 2)),
    **_every("multi_margin_loss multilabel_margin_loss_forward", _indexed(1, (torch.int64,))),
    **_every("_embedding_bag _embedding_bag_forward_only", _agree(0, 6)),
    **_every("native_batch_norm _batch_norm_with_update _batch_norm_with_update_functional", _norm),
    **_every("_fft_r2c _fft_c2r _fft_c2c", _refused(*_HALVES, torch.complex32)),
    **_every("argmax argmin", _refused(*_ORDERLESS, torch.bool, instead=".abs() or .int()")),
    **_every("mvlgamma", _refused(torch.bool)),
    **_every("index_add", _added),
    **_every("index_reduce", _indexed(2, _WIDE, 0, 3)),
    **_every("bucketize", _boundaries),
    **_every("multinomial", _drawn),
    **_every("bincount", _counted),
    **_every("uniform", _interval),
    **_every("embedding", _looked_up),
    **_every("select_scatter", _selected),
    **_every("as_strided_scatter", _strided_within),
    **_every("index_copy", _indexed(2, (torch.int64,), 0, 3)),
    **_every("index_fill", _indexed(2, (torch.int64,))),
    **_every("index_select", _indexed(2, _WIDE)),
    **_every("index _unsafe_index", _masks_fit),
    **_every(
        "index_put _unsafe_index_put _index_put_impl", lambda args: _put(args) or _masks_fit(args)
    ),
    **_every("masked_scatter", _indexed(1, (torch.bool,))),
    **_every("addbmm _cdist_forward linalg_cross grid_sampler_2d grid_sampler_3d", _same),
    **_every("_softmax_backward_data _log_softmax_backward_data", _agree(0, 1)),
    **_every("addcdiv", _divided),
    aten.complex.default: _complex,
    aten.polar.default: _complex,
    aten.max.dim: _along_something,
    aten.min.dim: _along_something,
    aten.median.dim: _along_something,
    aten.nanmedian.dim: _along_something,
    aten.mode.default: _along_something,
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
    **_every("nll_loss_forward nll_loss2d_forward", _classes),
    aten.pow.Tensor_Scalar: _power,
    aten.topk.default: lambda args: _ordered(args) or _NO_ORDER(args),
    aten.convolution.default: _convolved,
    aten.sub.Tensor: _difference,
    aten.sub.Scalar: _difference,
    aten.rsub.Tensor: _difference,
    aten.rsub.Scalar: _difference,
    aten.heaviside.default: _step,
    aten.max.default: _some,
    aten.min.default: _some,
    aten.view.dtype: _viewed,
    aten.view.default: _grouped,
    **{getattr(aten.linalg_pinv, o): _lapack for o in aten.linalg_pinv.overloads()},
    aten._softmax.default: _floating,
    aten._log_softmax.default: _floating,
}
#: ops that give quantized tensors, which a graph does not have; PyTorch's shape rules give plain ones
QUANTIZING = frozenset(_overloads(
    "quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic _empty_affine_quantized "
    "_empty_per_channel_affine_quantized _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor"
))  # fmt: skip

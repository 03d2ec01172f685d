"""Result metadata of the most common ops, for which PyTorch's own inference is slow (it decomposes batch norm into
dozens of reference ops). Rules cover only dense floating-point tensors of one shape; for other operands they return
None, and PyTorch infers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides

from gflow.dialects.types import row_major_strides

aten = torch.ops.aten
Tensor = torch.Tensor
Metadata = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
Rule = Callable[[tuple[Any, ...], dict[str, Any]], "list[Metadata | None] | None"]


def _same(like: Tensor) -> Metadata:
    return (like.shape, like.stride(), like.dtype, like.device)


def plain(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor's metadata as a hashable key; formulas for dynamic sizes."""
    return (
        tuple(map(plain_size, tensor.shape)),
        tuple(map(plain_size, tensor.stride())),
        tensor.dtype,
        tensor.device,
    )


def plain_size(size: Any) -> Any:
    """A size; the formula of a dynamic one."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _elementwise(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    first = args[0]
    if not (
        isinstance(first, Tensor)
        and first.dtype.is_floating_point
        and first.ndim > 0
        and (first.is_contiguous() or first.is_contiguous(memory_format=torch.channels_last))
    ):
        return None
    metadata = plain(first)
    for arg in (*args[1:], *kwargs.values()):
        if isinstance(arg, Tensor):
            if plain(arg) != metadata:
                return None
        elif type(arg) not in (int, float, str):
            return None
    return [_same(first)]


def _channels(input: Tensor, others: tuple[Any, ...]) -> Metadata | None:
    """Metadata of per-channel results: contiguous, and of one dtype."""
    if input.ndim < 2 or not input.is_contiguous() or input.dtype not in _FULL:
        return None
    if any(t is not None and t.dtype != input.dtype for t in others):
        return None
    return (torch.Size([input.shape[1]]), (1,), input.dtype, input.device)


def _batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    if kwargs or len(args) != 8 or args[5] is not True:
        return None
    channels = _channels(args[0], args[1:5])
    return None if channels is None else [_same(args[0]), *[channels] * 4]


def _batch_norm_backward(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Metadata | None] | None:
    if kwargs or len(args) != 10 or args[7] is not True or list(args[9]) != [True, True, True]:
        return None
    if not args[0].is_contiguous():
        return None
    channels = _channels(args[1], (args[0], *args[2:7]))
    return None if channels is None else [_same(args[1]), channels, channels]


def _group_norm_backward(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Metadata | None] | None:
    """For tensors without elements: PyTorch's shape rule divides by their number."""
    if kwargs or len(args) != 10 or args[1].numel():
        return None
    x, channels = args[1], args[6]
    parameters = (torch.Size([channels]), (1,), x.dtype, x.device)
    found = [_same(x), parameters, parameters]
    return [f if wanted else None for f, wanted in zip(found, args[9])]


def _loss_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """For tensors without elements: PyTorch's shape rules divide by their number."""
    x, target = args[1], args[2]
    if kwargs or x.numel() or target.numel() or x.dtype != args[0].dtype or x.dtype != target.dtype:
        return None
    shape = torch.broadcast_shapes(x.shape, target.shape)
    return [(shape, row_major_strides(shape), x.dtype, x.device)]


def _power(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """A bool to the power of a bool: PyTorch's kernels return a bool, its shape rule int64."""
    if len(args) != 2 or kwargs:
        return None
    base, exponent = args
    if base.dtype != torch.bool or type(exponent) is not bool:
        return None
    strides = compute_elementwise_output_strides(base)
    return [(base.shape, strides, base.dtype, base.device)]


def _vector_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """For tensors without elements and negative dimensions, which PyTorch's shape rule does not normalize."""
    x, *rest = args
    dims, keep = [*rest[1:], *(None, False)[len(rest[1:]) :]][:2]
    dtype = kwargs.get("dtype") or x.dtype
    if x.numel() or not isinstance(dims, (list, tuple)) or not dtype.is_floating_point:
        return None
    reduced = {d % x.ndim for d in dims if -x.ndim <= d < x.ndim}
    if len(reduced) != len(dims) or any(x.shape[d] == 0 for d in reduced):
        return None
    sizes = [1 if d in reduced else n for d, n in enumerate(x.shape) if keep or d not in reduced]
    shape = torch.Size(sizes)
    return [(shape, row_major_strides(shape), dtype, x.device)]


def _transposed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """A transposed convolution whose result is empty after padding: PyTorch's CPU kernels return an empty tensor, its
    shape rule refuses it."""
    if len(args) != 9 or kwargs or not args[6]:
        return None
    x, weight, bias, stride, padding, dilation, _, more, groups = args
    spatial = x.ndim - 2
    fits = weight.ndim == x.ndim and x.shape[1] == weight.shape[0] and x.dtype == weight.dtype
    outward = weight.shape[1] * groups if fits else 0
    known = all(isinstance(n, int) for n in (*x.shape, *weight.shape))
    if not known or not fits or (bias is not None and bias.shape != (outward,)):
        return None
    s, p, d, m = (
        [*part] * (spatial if len(part) == 1 else 1) for part in (stride, padding, dilation, more)
    )
    sizes = [
        (n - 1) * s[i] - 2 * p[i] + d[i] * (k - 1) + m[i] + 1
        for i, (n, k) in enumerate(zip(x.shape[2:], weight.shape[2:]))
    ]
    if x.numel() == 0 or min(sizes) != 0 or any(a >= max(b, c) for a, b, c in zip(m, s, d)):
        return None
    shape = torch.Size((x.shape[0], outward, *sizes))
    return [(shape, row_major_strides(shape), x.dtype, x.device)]


def _bags(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """Sums of bags of rows. PyTorch's CPU kernel has a fast path that does not return the bag of each index. Its shape
    rule depends on the operands' strides, but a program passes row-major operands; and it omits this path for
    bfloat16."""
    names = ("scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset")
    given = dict(zip((*names, "padding_idx"), args[3:])) | kwargs
    weight, offsets = args[0], args[2]
    fast = weight.dtype in (torch.float32, torch.float16, torch.bfloat16) and weight.ndim == 2
    fast = fast and weight.device.type == "cpu" and offsets.ndim == 1
    if not fast or given.get("mode", 0) != 0 or given.get("padding_idx", -1) >= 0:
        return None
    if any(not isinstance(n, int) for n in (*weight.shape, *offsets.shape)):
        return None
    bags = offsets.shape[0] - bool(given.get("include_last_offset"))
    if bags < 0:
        return None
    sizes = (torch.Size((bags, weight.shape[1])), torch.Size((0,)), torch.Size((bags,)))
    kinds = (weight.dtype, offsets.dtype, offsets.dtype)
    found = [(n, row_major_strides(n), kind, weight.device) for n, kind in zip(sizes, kinds)]
    return [*found, found[-1]]


def _margin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """A margin loss of one sample without a batch dimension: a 0-d tensor; PyTorch's shape rule returns one
    element."""
    x, target, *rest = args
    multilabel = len(rest) == 1
    reduction = rest[-1] if multilabel or len(rest) == 4 else kwargs.get("reduction", 1)
    if reduction != 0 or (x.ndim > 1 if multilabel else target.ndim > 0):
        return None
    if multilabel and x.shape != target.shape:
        return None
    loss = (torch.Size(()), (), x.dtype, x.device)
    return [loss, (target.shape, target.stride(), x.dtype, x.device)] if multilabel else [loss]


def _byte_labels(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """Class labels of dtype uint8, which PyTorch's kernels accept, and its shape rule refuses."""
    x, target, weight, reduction, _ = args
    if target.dtype != torch.uint8 or x.shape[:-1] != target.shape:
        return None
    if weight is not None and weight.shape != x.shape[-1:]:
        return None
    number = (torch.Size(()), (), x.dtype, x.device)
    return [
        (target.shape, (1,), x.dtype, x.device) if reduction == 0 and x.ndim > 1 else number,
        number,
    ]


def _byte_labels_backward(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Metadata | None] | None:
    _, x, target, *_ = args
    return (
        [(x.shape, row_major_strides(x.shape), x.dtype, x.device)]
        if target.dtype == torch.uint8
        else None
    )


def _least_squares(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """A least-squares solution. PyTorch has no shape rule, since the drivers gelsd and gelss return residuals only if
    all matrices have full rank; those of the other drivers do not depend on values."""
    a, b = args[:2]
    driver = kwargs.get("driver") or ("gels" if a.device.type == "cuda" else "gelsy")
    if a.ndim < 2:
        return None
    batch, (m, n) = tuple(a.shape[:-2]), a.shape[-2:]
    if not all(isinstance(size, int) for size in (*a.shape, *b.shape)) or a.dtype != b.dtype:
        return None
    if a.dtype not in (*_FULL, torch.complex64, torch.complex128):
        return None
    vector = b.ndim == a.ndim - 1
    if (
        tuple(b.shape[: len(batch)]) != batch
        or b.ndim != a.ndim - vector
        or b.shape[len(batch)] != m
    ):
        return None
    if m > n and driver not in ("gels", "gelsy"):
        return None
    columns, rows = (1 if vector else b.shape[-1]), max(m, n, 1)
    real = a.real.dtype if a.is_complex() else a.dtype
    inner = (1,) if vector else (1, rows)  # a part of the right-hand sides, column by column
    outer = tuple(s * rows * columns for s in row_major_strides(batch))
    solution = torch.Size((*batch, n) if vector else (*batch, n, columns))
    others = (
        ((*batch, columns) if m > n and driver == "gels" else (0,), real),
        ((0,) if driver == "gels" else batch, torch.int64),
        ((*batch, min(m, n)) if driver in ("gelsd", "gelss") else (0,), real),
    )
    return [
        (solution, (*outer, *inner), a.dtype, a.device),
        *((torch.Size(n), row_major_strides(n), dtype, a.device) for n, dtype in others),
    ]


def _alignments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Metadata | None] | None:
    """CTC loss with lengths that are Python numbers: losses, and the table of `log_alpha`."""
    if len(args) < 4:
        return None
    log_probs, targets, input_lengths, lengths, *_ = args
    sizes = (*log_probs.shape, *lengths)
    if log_probs.ndim != 3 or targets.ndim not in (1, 2) or not all(type(n) is int for n in sizes):
        return None
    if log_probs.dtype not in _FULL or targets.dtype not in (torch.int32, torch.int64):
        return None
    steps, batch, _ = log_probs.shape
    if not len(input_lengths) == len(lengths) == batch or not batch:
        return None
    shapes = (torch.Size((batch,)), torch.Size((batch, steps, 2 * max(lengths) + 1)))
    return [(n, row_major_strides(n), log_probs.dtype, log_probs.device) for n in shapes]


_FULL = (torch.float32, torch.float64)
_ELEMENTWISE = (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default,
    aten.relu.default, aten.hardtanh.default, aten.hardtanh_backward.default,
    aten.threshold_backward.default, aten.sigmoid.default, aten.sigmoid_backward.default,
    aten.tanh.default, aten.tanh_backward.default, aten.gelu.default, aten.gelu_backward.default,
    aten.silu.default, aten.silu_backward.default, aten.sqrt.default, aten.exp.default,
    aten.log.default, aten.addcmul.default, aten.addcdiv.default, aten.lerp.Scalar,
)  # fmt: skip

_LOSSES = (
    aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default,
    aten.binary_cross_entropy_backward.default,
)  # fmt: skip

RULES: dict[Any, tuple[type | None, Rule]] = {
    **dict.fromkeys(_ELEMENTWISE, (None, _elementwise)),
    aten.pow.Tensor_Scalar: (None, _power),
    aten.convolution.default: (None, _transposed),
    aten._embedding_bag.default: (tuple, _bags),
    aten._embedding_bag_forward_only.default: (tuple, _bags),
    aten._native_batch_norm_legit_functional.default: (tuple, _batch_norm),
    aten.native_batch_norm_backward.default: (tuple, _batch_norm_backward),
    aten.native_group_norm_backward.default: (tuple, _group_norm_backward),
    aten.linalg_vector_norm.default: (None, _vector_norm),
    aten.linalg_lstsq.default: (tuple, _least_squares),
    aten._ctc_loss.default: (tuple, _alignments),
    aten.multi_margin_loss.default: (None, _margin),
    aten.nll_loss_forward.default: (tuple, _byte_labels),
    aten.nll_loss_backward.default: (None, _byte_labels_backward),
    aten.multilabel_margin_loss_forward.default: (tuple, _margin),
    **dict.fromkeys(_LOSSES, (None, _loss_backward)),
}
#: ops whose kernels give other shapes than PyTorch's rules; these rules also apply to constants
CORRECTED = frozenset(f for f, (_, rule) in RULES.items() if rule in (_bags, _margin, _transposed))

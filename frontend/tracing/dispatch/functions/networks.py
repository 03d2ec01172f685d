"""Layers and losses of PyTorch that update tensors although their schemas do not say so (batch norm's running
statistics), read the values of tensors, or use kernels that a graph does not have."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F

from gflow.errors import GraphTraceError

from ..failures.assertions import fail_if
from ..recorder import describe
from . import overlaps
from .proxies import Handler, TensorProxies, plain
from .recurrent import recurrent

aten = torch.ops.aten
Tensor = torch.Tensor


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if input.numel() == 0:  # as in PyTorch, statistics stay
        out = input.clone() if weight is None else input * weight[0]
        return out if bias is None else out + bias[0]
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)[
            0
        ]
    if training:
        return aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    return aten._native_batch_norm_legit_no_training.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )[0]


def _native_batch_norm(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Update the running statistics, which the op's schema does not declare."""
    names = (
        "input",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "training",
        "momentum",
        "eps",
    )
    given = dict(zip(names, args)) | kwargs
    if not given["training"] or given["running_mean"] is None or given["running_var"] is None:
        return func(*args, **kwargs)
    return aten._native_batch_norm_legit.default(*(given[n] for n in names))


def _f_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        F._verify_batch_size(input.size())  # type: ignore[attr-defined]
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def _instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    batch, channels = input.shape[:2]

    def spread(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.repeat(batch)

    mean, var = spread(running_mean), spread(running_var)
    flat = input.contiguous().view(1, batch * channels, *input.shape[2:])
    out = _batch_norm(flat, spread(weight), spread(bias), mean, var, use_input_stats, momentum, eps)
    with torch.no_grad():
        for running, spread_stats in ((running_mean, mean), (running_var, var)):
            if use_input_stats and running is not None and spread_stats is not None:
                running.copy_(spread_stats.view(batch, channels).mean(0))
    return out.view(input.shape)


def _f_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if use_input_stats:
        F._verify_spatial_size(input.size())  # type: ignore[attr-defined]
    return _instance_norm(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0 or input.numel() == 0:
        return input
    out = torch.native_dropout(input, p, True)[0] if p < 1.0 else input * 0.0
    return input.copy_(out) if inplace else out


def _torch_dropout(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    return _dropout(names["input"], names["p"], names["train"])


def _max_pool1d(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """By the op for images: PyTorch's kernel without gradients requires static sizes."""
    given = dict(kwargs)
    if mode.recorder.sizes is None or given.pop("return_indices", False) or len(args) > 6:
        return func(*args, **kwargs)
    return _as_images(*args, **given)


def _as_images(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:  # fmt: skip
    def pair(first: int, value: Any) -> list[Any]:
        return [first, *(value if isinstance(value, (list, tuple)) else (value,))]

    sizes = pair(1, kernel_size)
    step = sizes if stride is None or stride == () or stride == [] else pair(1, stride)
    image = input.unsqueeze(-2)
    return torch.max_pool2d(
        image, sizes, step, pair(0, padding), pair(1, dilation), ceil_mode
    ).squeeze(-2)


def _one_hot(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Without reading values: PyTorch's function reads them to check them, or to find the number of classes."""
    words = dict(zip(("tensor", "num_classes"), args, strict=False)) | kwargs
    tensor, num_classes = words["tensor"], words.get("num_classes", -1)
    if num_classes < 0 and tensor.numel() and mode.knows(tensor):
        num_classes = int(tensor.max()) + 1
    if num_classes < 0:
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: one_hot() without num_classes takes the number of classes from "
            "the values of a tensor, which do not exist while a graph is traced. Pass num_classes."
        )
    if tensor.dtype != torch.int64:
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: one_hot() takes classes of dtype int64, got "
            f"{str(tensor.dtype).removeprefix('torch.')}; convert them with .long()"
        )
    fail_if(tensor < 0, "RuntimeError", "Class values must be non-negative.")
    fail_if(
        tensor >= num_classes, "RuntimeError",
        f"Class values must be smaller than num_classes, which is {num_classes}.",
    )  # fmt: skip
    classes = torch.arange(num_classes, device=tensor.device, dtype=tensor.dtype)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """PyTorch's function, which reads the values of `var`."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    if isinstance(var, Tensor):
        fail_if(var < 0, "ValueError", "var has negative entry/entries")
    elif var < 0:
        raise ValueError("var has negative entry/entries")
    var = var.clone() if isinstance(var, Tensor) else torch.full_like(input, var)
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else getattr(loss, reduction)()


def _embedding(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """With dense gradients; see `sparse.py` for optimizers that expect sparse ones. PyTorch has no sparse gradients
    that are scaled by the frequency of an index, and raises in the backward; so does this handler."""
    by_frequency, at = _EMBEDDINGS[func]
    sparse = args[at] if len(args) > at else kwargs.get("sparse", False)
    given = len(args) > by_frequency
    scaled = args[by_frequency] if given else kwargs.get("scale_grad_by_freq", False)
    if len(args) > at:
        args = (*args[:at], False, *args[at + 1 :])
    elif "sparse" in kwargs:
        kwargs = kwargs | {"sparse": False}
    found = func(*args, **kwargs)
    first = found[0] if isinstance(found, tuple) else found
    if sparse and scaled and first.requires_grad:
        where = describe(mode.recorder.locator.here())
        first.register_hook(functools.partial(_unscaled, where))
    return found


#: functions that look rows up, with the positions of `scale_grad_by_freq` and `sparse` among their arguments
_EMBEDDINGS = {
    F.embedding: (5, 6), torch.embedding: (3, 4), F.embedding_bag: (5, 7), torch.embedding_bag: (3, 5),
}  # fmt: skip


def _unscaled(where: str, gradient: Tensor) -> None:
    raise GraphTraceError(
        f"{where}: the backward of an embedding with sparse=True and scale_grad_by_freq=True, which PyTorch does not "
        "have either: sparse gradients are not scaled by how often an index comes. Leave one of the two out."
    )


def _row_major_matrix(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """With a row-major operand: PyTorch factors a row-major matrix transposed and others as they are, and its backward
    makes the same distinction. Operands in a program are row-major, so they must be so in the trace."""
    if args:
        return func(args[0].contiguous(), *args[1:], **kwargs)
    name = "A" if "A" in kwargs else "input"
    return func(**{**kwargs, name: kwargs[name].contiguous()})


def _attention(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """With copies of operands where PyTorch would decompose attention.

    PyTorch decomposes attention if the last dimension of an operand has gaps, or its elements share memory. Under
    autocast it first converts such an operand to a dense tensor of half precision. A graph is traced in the program's
    own types, and scores in half precision would overflow, so an operand whose elements share memory is copied. The
    backward of the decomposition saves scaled copies of queries and keys, which may then be updated, and the values
    themselves.
    """

    def shares(value: Any) -> bool:
        gaps = isinstance(value, Tensor) and value.dim() and value.stride(-1) != 1
        return bool(gaps) and overlaps.shares(value, mode.concrete)

    names = ("query", "key", "value")
    given = {**dict(zip(names, args)), **{k: v for k, v in kwargs.items() if k in names}}
    if any(map(shares, given.values())):
        dense = torch.contiguous_format
        given = {
            name: value.contiguous() if name == "value" else value.clone(memory_format=dense)
            for name, value in given.items()
        }
    rest = {k: v for k, v in kwargs.items() if k not in names}
    return func(*(given.pop(n) for n in names[: len(args)]), *args[3:], **given, **rest)


def _ldexp(input: Tensor, other: Tensor) -> Tensor:
    """With an exponent that is no integer, as PyTorch's kernel: its shape rule does not promote integers times a 0-d
    half-precision tensor to half precision."""
    return input * torch.pow(2.0, other) if other.is_floating_point() else torch.ldexp(input, other)


#: functions that PyTorch decomposes to `_linalg_det`, `_linalg_slogdet` and `_linalg_solve_ex`
FACTORING = (
    torch.det, torch.linalg.det, Tensor.det, torch.logdet, Tensor.logdet, torch.slogdet, Tensor.slogdet,
    torch.linalg.slogdet, torch.linalg.solve, torch.linalg.solve_ex, torch.linalg.tensorsolve,
)  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(FACTORING, _row_major_matrix),
    F.scaled_dot_product_attention: _attention,
    torch.batch_norm: plain(_batch_norm),
    F.batch_norm: plain(_f_batch_norm),
    torch.native_batch_norm: _native_batch_norm,
    aten.native_batch_norm: _native_batch_norm,
    aten.native_batch_norm.default: _native_batch_norm,
    torch.instance_norm: plain(_instance_norm),
    F.instance_norm: plain(_f_instance_norm),
    F.dropout: plain(_dropout),
    torch.ldexp: plain(_ldexp),
    Tensor.ldexp: plain(_ldexp),
    F.embedding: _embedding,
    F.embedding_bag: _embedding,
    torch.embedding: _embedding,
    torch.embedding_bag: _embedding,
    F.one_hot: _one_hot,
    F.gaussian_nll_loss: plain(_gaussian_nll_loss),
    torch.dropout: _torch_dropout,
    torch.max_pool1d: _max_pool1d,
    F.max_pool1d: _max_pool1d,
    torch.lstm: recurrent,
    torch.gru: recurrent,
    torch.rnn_tanh: recurrent,
    torch.rnn_relu: recurrent,
}

"""Ops of the dialect by PyTorch's differentiable ops, for programs read from StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gflow.lowering.dtypes import TO_TORCH

Tensor = torch.Tensor
Attrs = dict[str, Any]
Run = Callable[..., tuple[Tensor, ...]]


def _plain(function: Callable[..., Tensor]) -> Callable[[Attrs], Run]:
    """An op without attributes."""
    return lambda attrs: lambda *xs: (function(*xs),)


def _with(function: Callable[..., Tensor]) -> Callable[[Attrs], Run]:
    """An op whose attributes are the last argument."""
    return lambda attrs: lambda *xs: (function(*xs, attrs),)


def _by_nonzero(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Integer division that returns 0 if the divisor is 0."""

    def divide(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        nothing = b == 0
        return function(a, b.masked_fill(nothing, 1)).masked_fill(nothing, 0)

    return divide


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc")


def _shift(left: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Shifts; by at least as many bits as the dtype has, they return zeros or the sign."""

    def shift(a: Tensor, b: Tensor) -> Tensor:
        bits = a.element_size() * 8
        beyond = (b < 0) | (b >= bits)
        if left:
            return (a << b.masked_fill(beyond, 0)).masked_fill(beyond, 0)
        if a.dtype == torch.uint8:
            return (a >> b.masked_fill(beyond, 0)).masked_fill(beyond, 0)
        return a >> b.masked_fill(beyond, bits - 1)

    return shift


_COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
            "ge": torch.ge}  # fmt: skip


def _iota(a: Attrs) -> Tensor:
    shape, dim, dtype = a["shape"], a["dim"], TO_TORCH[a["dtype"]]
    if not shape:
        return torch.zeros((), dtype=dtype)
    line = torch.arange(shape[dim], dtype=torch.int64).to(dtype)
    return line.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)


def _broadcast(x: Tensor, a: Attrs) -> Tensor:
    inner = [1] * len(a["shape"])
    for size, d in zip(x.shape, a["dims"]):
        inner[d] = size
    return x.reshape(inner).expand(a["shape"])


def _slice(x: Tensor, a: Attrs) -> Tensor:
    index = tuple(slice(*s) for s in zip(a["starts"], a["limits"], a["strides"]))
    return x[index] if index else x


def _pad(x: Tensor, value: Tensor, a: Attrs) -> Tensor:
    for d, (low, high) in enumerate(zip(a["low"], a["high"])):
        shape = list(x.shape)
        before, after = (value.expand([*shape[:d], n, *shape[d + 1 :]]) for n in (low, high))
        x = torch.cat([before] * (low > 0) + [x] + [after] * (high > 0), d)
    return x


def _take(x: Tensor, index: Tensor, a: Attrs) -> Tensor:
    taken = torch.index_select(x, a["dim"], index.reshape(-1))
    return taken.reshape((*x.shape[: a["dim"]], *index.shape, *x.shape[a["dim"] + 1 :]))


def _reduce(x: Tensor, a: Attrs) -> Tensor:
    kind, dims = a["kind"], list(a["dims"])
    if kind == "sum":
        return torch.sum(x, dims, dtype=x.dtype)
    if kind in ("max", "min"):
        return torch.amax(x, dims) if kind == "max" else torch.amin(x, dims)
    for d in reversed(dims):
        if kind == "prod":
            x = torch.prod(x, d, dtype=x.dtype)
        else:
            x = torch.any(x, d) if kind == "any" else torch.all(x, d)
    return x


def _convolution(x: Tensor, weight: Tensor, a: Attrs) -> Tensor:
    spatial = x.dim() - 2
    return torch.convolution(x, weight, None, a["stride"], a["padding"], a["dilation"], False,
                             [0] * spatial, a["groups"])  # fmt: skip


def _max_pool(x: Tensor, a: Attrs) -> Tensor:
    pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3]
    return pool(x, a["kernel"], a["stride"], a["padding"], a["dilation"])  # type: ignore[no-any-return]


def _avg_pool(x: Tensor, a: Attrs) -> Tensor:
    """`avg_pool` with a divisor, which PyTorch's `avg_pool1d` does not take."""
    pool: Any = (F.avg_pool2d, F.avg_pool2d, F.avg_pool3d)[x.dim() - 3]
    lone = x.dim() == 3
    windows = [[1, *w] if lone else [*w] for w in (a["kernel"], a["stride"])]
    padding = [0, *a["padding"]] if lone else a["padding"]
    found = pool(x.unsqueeze(2) if lone else x, *windows, padding, divisor_override=a["divisor"])
    return found.squeeze(2) if lone else found


#: by name: a function from the op's attributes to the function that computes its results; convolutions and
#: pooling are channels-first, and `avg_pool` has a divisor, as StableHLO is read
OPERATIONS: dict[str, Callable[[Attrs], Run]] = {
    **{name: _plain(getattr(torch, name)) for name in (
        "add", "sub", "mul", "maximum", "minimum", "pow", "atan2", "neg", "abs", "sign", "floor",
        "ceil", "round", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan",
        "tanh", "sigmoid", "matmul",
    )},
    "div": _plain(_by_nonzero(_div)),
    "fmod": _plain(_by_nonzero(torch.fmod)),
    "and": _plain(torch.bitwise_and),
    "or": _plain(torch.bitwise_or),
    "xor": _plain(torch.bitwise_xor),
    "not": _plain(torch.bitwise_not),
    "shift_left": _plain(_shift(left=True)),
    "shift_right": _plain(_shift(left=False)),
    "is_nan": _plain(torch.isnan),
    "is_inf": _plain(torch.isinf),
    "select": _plain(torch.where),
    "compare": _with(lambda a, b, attrs: _COMPARE[attrs["predicate"]](a, b)),
    "convert": _with(lambda x, a: x.to(TO_TORCH[a["dtype"]])),
    "iota": _with(_iota),
    "broadcast": _with(_broadcast),
    "reshape": _with(lambda x, a: x.reshape(a["shape"])),
    "transpose": _with(lambda x, a: x.permute(a["permutation"])),
    "slice": _with(_slice),
    "pad": _with(_pad),
    "concatenate": lambda a: lambda *xs: (torch.cat(xs, a["dim"]),),
    "reverse": _with(lambda x, a: torch.flip(x, a["dims"])),
    "take": _with(_take),
    "reduce": _with(_reduce),
    "convolution": _with(_convolution),
    "max_pool": _with(_max_pool),
    "avg_pool": _with(_avg_pool),
    "optimization_barrier": lambda a: lambda *xs: xs,
}  # fmt: skip

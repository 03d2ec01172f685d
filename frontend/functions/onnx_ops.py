"""Ops of ONNX (opset 13 and later) by PyTorch's ops: those that `gflow.from_onnx` supports.

An op gets its attributes, then its operands: tensors, or NumPy arrays (`Host`) if a value is known when the module is
called (shapes, and values computed from them). Operands that PyTorch needs as numbers, such as the shape of a
`Reshape`, must be arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Host = np.ndarray
Attrs = dict[str, Any]
Op = Callable[..., Any]


class Unreadable(Exception):
    """PyTorch does not support the op; the message says why."""


def _numbers(x: Any, what: str) -> list[Any]:
    if not isinstance(x, Host):
        raise Unreadable(f"{what} is computed from values of tensors")
    return x.reshape(-1).tolist()  # type: ignore[no-any-return]


def _plain(function: Callable[..., Any]) -> Op:
    return lambda attrs, *xs: function(*xs)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Op:
    """A binary op applied to any number of operands."""

    def run(attrs: Attrs, first: Tensor, *rest: Tensor) -> Tensor:
        for x in rest:
            first = function(first, x)
        return first

    return run


def _div(attrs: Attrs, a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(attrs: Attrs, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if attrs.get("fmod") else torch.remainder(a, b)


def _clip(attrs: Attrs, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is not None:
        x = x.clamp(min=low.item() if isinstance(low, Host) else low)
    if high is not None:
        x = x.clamp(max=high.item() if isinstance(high, Host) else high)
    return x


_DTYPES = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 6: torch.int32, 7: torch.int64, 9: torch.bool,
           10: torch.float16, 11: torch.float64, 16: torch.bfloat16}  # fmt: skip


def _cast(attrs: Attrs, x: Tensor) -> Tensor:
    if attrs["to"] not in _DTYPES:
        raise Unreadable(f"a Cast to ONNX's element type {attrs['to']}")
    return x.to(_DTYPES[attrs["to"]])


# -- shapes


def _reshape(attrs: Attrs, x: Tensor, shape: Any) -> Tensor:
    sizes = _numbers(shape, "the shape of a Reshape")
    if not attrs.get("allowzero"):
        sizes = [x.shape[d] if s == 0 else s for d, s in enumerate(sizes)]
    return x.reshape(sizes)


def _transpose(attrs: Attrs, x: Tensor) -> Tensor:
    return x.permute(attrs.get("perm") or tuple(reversed(range(x.dim()))))


def _flatten(attrs: Attrs, x: Tensor) -> Tensor:
    axis = attrs.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, x.numel() // rows if rows else 0)


def _squeeze(attrs: Attrs, x: Tensor, axes: Any = None) -> Tensor:
    if axes is None:
        return x.squeeze()
    return x.squeeze(tuple(_numbers(axes, "which dimensions a Squeeze takes away")))


def _unsqueeze(attrs: Attrs, x: Tensor, axes: Any) -> Tensor:
    found = _numbers(axes, "which dimensions an Unsqueeze adds")
    rank = x.dim() + len(found)
    for axis in sorted(a % rank for a in found):
        x = x.unsqueeze(axis)
    return x


def _split(attrs: Attrs, x: Tensor, sizes: Any = None) -> tuple[Tensor, ...]:
    axis = attrs.get("axis", 0)
    if sizes is not None:
        return x.split(_numbers(sizes, "the sizes of a Split"), axis)
    return x.split(-(-x.shape[axis] // attrs["outputs"]), axis)


def _slice(
    attrs: Attrs, x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Tensor:
    begin, end = _numbers(starts, "where a Slice begins"), _numbers(ends, "where a Slice ends")
    dims = range(len(begin)) if axes is None else _numbers(axes, "the dimensions of a Slice")
    by = [1] * len(begin) if steps is None else _numbers(steps, "the steps of a Slice")
    for dim, first, last, step in zip(dims, begin, end, by, strict=True):
        places = range(*slice(first, last, step).indices(x.shape[dim]))
        if step < 0:
            x = x.flip(dim)
            first = x.shape[dim] - 1 - places.start
            places = range(first, first + len(places) * -step, -step)
        index = [slice(None)] * x.dim()
        index[dim] = slice(places.start, max(places.stop, places.start), places.step)
        x = x[tuple(index)]
    return x


def _gather(attrs: Attrs, x: Tensor, index: Any) -> Tensor:
    axis = attrs.get("axis", 0) % x.dim()
    if isinstance(index, Host) and index.ndim == 0:
        return x.select(axis, int(index))
    place = as_tensor(index, x.device)
    place = torch.where(place < 0, place + x.shape[axis], place)
    found = x.index_select(axis, place.reshape(-1))
    return found.reshape(*x.shape[:axis], *place.shape, *x.shape[axis + 1 :])


def _gather_elements(attrs: Attrs, x: Tensor, index: Any) -> Tensor:
    axis, place = attrs.get("axis", 0), as_tensor(index, x.device)
    return x.gather(axis, torch.where(place < 0, place + x.shape[axis], place))


def _expand(attrs: Attrs, x: Tensor, shape: Any) -> Tensor:
    wanted = _numbers(shape, "the shape of an Expand")
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(wanted)))


def _pad(attrs: Attrs, x: Tensor, pads: Any, value: Any = None, axes: Any = None) -> Tensor:
    if attrs.get("mode", "constant") != "constant":
        raise Unreadable(f"a Pad of mode {attrs['mode']}")
    given = _numbers(pads, "the sizes of a Pad")
    dims = range(x.dim()) if axes is None else _numbers(axes, "the dimensions of a Pad")
    low, high = given[: len(given) // 2], given[len(given) // 2 :]
    by_dim = {d % x.dim(): (a, b) for d, a, b in zip(dims, low, high, strict=True)}
    flat = [n for d in reversed(range(x.dim())) for n in by_dim.get(d, (0, 0))]
    number = 0.0 if value is None else _numbers(value, "the value of a Pad")[0]
    return F.pad(x, flat, value=number)


def as_tensor(x: Any, device: torch.device | None = None) -> Any:
    """An array as a tensor; any other value itself."""
    if not isinstance(x, Host):
        return x
    return torch.tensor(x.tolist(), dtype=torch.from_numpy(x).dtype, device=device)


# -- reductions, products


def _reduction(function: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Op:
    def run(attrs: Attrs, x: Tensor, axes: Any = None) -> Tensor:
        dims = attrs.get("axes") if axes is None else _numbers(axes, "what a reduction is over")
        if not dims and attrs.get("noop_with_empty_axes"):
            return x
        return function(x, tuple(dims or range(x.dim())), bool(attrs.get("keepdims", 1)))

    return run


def _prod(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    for d in sorted((d % x.dim() for d in dims), reverse=True):
        x = x.prod(d, keepdim=keep)
    return x


def _arg(function: Callable[..., Tensor]) -> Op:
    def run(attrs: Attrs, x: Tensor) -> Tensor:
        if attrs.get("select_last_index"):
            raise Unreadable("the last of several positions (select_last_index)")
        return function(x, attrs.get("axis", 0), keepdim=bool(attrs.get("keepdims", 1)))

    return run


def _gemm(attrs: Attrs, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if attrs.get("transA") else a
    b = b.T if attrs.get("transB") else b
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    found = a @ b if alpha == 1.0 else alpha * (a @ b)
    if c is None:
        return found
    return found + (c if beta == 1.0 else beta * c)


# -- windows


def _windows(attrs: Attrs, x: Tensor, spatial: int) -> tuple[list[int], list[int], list[int], list[int]]:  # fmt: skip
    """Strides, dilations, and padding before and after."""
    if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unreadable(f"auto_pad {attrs['auto_pad']}")
    ones, pads = [1] * spatial, attrs.get("pads") or [0] * (2 * spatial)
    return (
        attrs.get("strides") or ones,
        attrs.get("dilations") or ones,
        pads[:spatial],
        pads[spatial:],
    )


def _filled(x: Tensor, low: Sequence[int], high: Sequence[int], value: float) -> Tensor:
    return F.pad(x, [n for pair in zip(reversed(low), reversed(high)) for n in pair], value=value)


_CONV = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def _conv(attrs: Attrs, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = x.dim() - 2
    stride, dilation, low, high = _windows(attrs, x, spatial)
    if low != high:
        x, low = _filled(x, low, high, 0.0), [0] * spatial
    return _CONV[spatial - 1](x, weight, bias, stride, low, dilation, attrs.get("group", 1))  # type: ignore[operator]


def _conv_transpose(attrs: Attrs, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = x.dim() - 2
    stride, dilation, low, high = _windows(attrs, x, spatial)
    if low != high or "output_shape" in attrs:
        raise Unreadable(
            "a ConvTranspose with an output_shape, or other padding before than behind"
        )
    more = attrs.get("output_padding") or [0] * spatial
    return _TRANSPOSED[spatial - 1](x, weight, bias, stride, low, more, attrs.get("group", 1), dilation)  # type: ignore[operator]  # fmt: skip


def _max_pool(attrs: Attrs, x: Tensor) -> Tensor:
    kernel = attrs["kernel_shape"]
    stride, dilation, low, high = _windows(attrs, x, len(kernel))
    if attrs.get("ceil_mode") or attrs["outputs"] > 1:
        raise Unreadable("a MaxPool with ceil_mode or positions")
    if low != high or any(2 * p > k for p, k in zip(low, kernel)):
        x, low = _filled(x, low, high, -float("inf")), [0] * len(kernel)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1](x, kernel, stride, low, dilation)  # type: ignore[no-any-return,operator]  # fmt: skip


def _avg_pool(attrs: Attrs, x: Tensor) -> Tensor:
    kernel = attrs["kernel_shape"]
    stride, dilation, low, high = _windows(attrs, x, len(kernel))
    if attrs.get("ceil_mode") or low != high or any(d != 1 for d in dilation):
        raise Unreadable("an AveragePool with ceil_mode, dilation or other padding before than behind")  # fmt: skip
    pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    return pool(x, kernel, stride, low, count_include_pad=bool(attrs.get("count_include_pad")))  # type: ignore[no-any-return]


# -- norms


def _batch_norm(
    attrs: Attrs, x: Tensor, weight: Tensor, bias: Tensor, *statistics: Tensor
) -> Tensor:
    if attrs.get("training_mode"):
        raise Unreadable("a BatchNormalization in training mode")
    mean, variance = statistics
    return F.batch_norm(x, mean, variance, weight, bias, eps=attrs.get("epsilon", 1e-5))


def _layer_norm(attrs: Attrs, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if attrs["outputs"] > 1:
        raise Unreadable("the statistics of a LayerNormalization")
    shape = x.shape[attrs.get("axis", -1) % x.dim() :]
    given = [None if p is None else p.expand(shape) for p in (weight, bias)]
    return F.layer_norm(x, shape, given[0], given[1], attrs.get("epsilon", 1e-5))


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


_SAME: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "And": torch.logical_and, "Asin": torch.asin, "Atan": torch.atan,
    "Ceil": torch.ceil, "Cos": torch.cos, "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp,
    "Floor": torch.floor, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "HardSwish": F.hardswish,
    "Identity": lambda x: x, "IsNaN": torch.isnan, "Less": torch.lt, "LessOrEqual": torch.le, "Log": torch.log,
    "MatMul": torch.matmul, "Mish": F.mish, "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x), "Pow": torch.pow, "Reciprocal": torch.reciprocal,
    "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin,
    "Softplus": F.softplus, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh, "Where": torch.where,
    "Xor": torch.logical_xor, "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul,
    "GlobalAveragePool": lambda x: x.mean(_spatial(x), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(_spatial(x), keepdim=True),
    "Dropout": lambda x, *given: x,
}  # fmt: skip

OPS: dict[str, Op] = {
    **{name: _plain(function) for name, function in _SAME.items()},
    "Div": _div, "Mod": _mod, "Clip": _clip, "Cast": _cast, "Reshape": _reshape, "Transpose": _transpose,
    "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Split": _split, "Slice": _slice,
    "Gather": _gather, "GatherElements": _gather_elements, "Expand": _expand, "Pad": _pad, "Gemm": _gemm,
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool, "AveragePool": _avg_pool,
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm,
    "Max": _folded(torch.maximum), "Min": _folded(torch.minimum), "Sum": _folded(torch.add),
    "Concat": lambda attrs, *xs: torch.cat([as_tensor(x) for x in xs], attrs["axis"]),
    "Einsum": lambda attrs, *xs: torch.einsum(attrs["equation"], *xs),
    "Gelu": lambda attrs, x: F.gelu(x, approximate=attrs.get("approximate", "none")),
    "LeakyRelu": lambda attrs, x: F.leaky_relu(x, attrs.get("alpha", 0.01)),
    "Elu": lambda attrs, x: F.elu(x, attrs.get("alpha", 1.0)),
    "HardSigmoid": lambda attrs, x: (attrs.get("alpha", 0.2) * x + attrs.get("beta", 0.5)).clamp(0, 1),
    "Softmax": lambda attrs, x: torch.softmax(x, attrs.get("axis", -1)),
    "LogSoftmax": lambda attrs, x: torch.log_softmax(x, attrs.get("axis", -1)),
    "Trilu": lambda attrs, x, k=None: (torch.triu if attrs.get("upper", 1) else torch.tril)(
        x, 0 if k is None else _numbers(k, "the diagonal of a Trilu")[0]),
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
    "ReduceSum": _reduction(lambda x, dims, keep: x.sum(dims, keepdim=keep)),
    "ReduceMean": _reduction(lambda x, dims, keep: x.mean(dims, keepdim=keep)),
    "ReduceMax": _reduction(lambda x, dims, keep: x.amax(dims, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, dims, keep: x.amin(dims, keepdim=keep)),
    "ReduceL2": _reduction(lambda x, dims, keep: x.square().sum(dims, keepdim=keep).sqrt()),
    "ReduceProd": _reduction(_prod),
}  # fmt: skip

#: ops whose operands, except the first, are numbers
NUMBERED = frozenset(
    {
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Split",
        "Slice",
        "Gather",
        "Expand",
        "Pad",
        "Clip",
        "Trilu",
    }
    | {name for name in OPS if name.startswith("Reduce")}
)

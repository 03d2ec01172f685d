"""Eager on dense copies: every kernel reads row-major operands and writes row-major results.

Some of PyTorch's kernels give other numbers where operands have gaps: vector code and scalar code of one op treat
NaN in different ways (the gradient of `elu`), or a result is written as if it were row-major (`avg_pool3d(out=)`).
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor


#: elementwise ops whose vector code and scalar code treat NaN in different ways, so that their answer depends on
#: how many elements there are
_BY_SIZE = frozenset({
    torch.ops.aten.hardtanh_backward, torch.ops.aten.hardswish_backward, torch.ops.aten.softshrink_backward,
    torch.ops.aten.hardshrink_backward, torch.ops.aten.elu_backward,
})  # fmt: skip


def _repeated(func: Any, args: Any, kwargs: Any) -> Any:
    """An elementwise op on operands of one shape, on as many copies as vector code takes all of."""
    first = next(a for a in args if isinstance(a, Tensor))
    many = [a.reshape(-1).repeat(64) if isinstance(a, Tensor) else a for a in args]
    return func(*many, **kwargs)[: first.numel()].reshape(first.shape).clone()


class ChannelsLast(TorchDispatchMode):
    """Runs convolutions on channels-last operands: kernels for these leave padding out, others multiply zeros
    with the weights, which is NaN where a weight is infinite or NaN."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.convolution_backward):
            args = [
                a.contiguous(memory_format=formats[a.dim()])
                if isinstance(a, Tensor) and a.dim() in formats
                else a
                for a in args
            ]
        return func(*args, **(kwargs or {}))


_HALVES = (torch.float16, torch.bfloat16)
#: contractions with a bias: op → (its operands among the arguments, its bias, the contraction without one)
_BIASED: dict[Any, tuple[slice, int, Any]] = {
    torch.ops.aten.addmm: (slice(1, 3), 0, torch.mm),
    torch.ops.aten.addmv: (slice(1, 3), 0, torch.mv),
    torch.ops.aten.baddbmm: (slice(1, 3), 0, torch.bmm),
}


class RoundedProducts(TorchDispatchMode):
    """Rounds products of halves to their type before a bias is added, as gflow does (docs/differences.md)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not args or not isinstance(args[0], Tensor) or args[0].dtype not in _HALVES:
            return func(*args, **kwargs)
        if func is torch.ops.aten.convolution.default and args[2] is not None:
            product = func(*args[:2], None, *args[3:])
            bias = args[2].reshape(-1, *[1] * (args[0].dim() - 2))
            return (product.float() + bias.float()).to(product.dtype)
        if func.overloadpacket in _BIASED and func._overloadname == "default":
            operands, bias, contract = _BIASED[func.overloadpacket]
            product = contract(*args[operands])
            total = kwargs.get("alpha", 1) * product.float()
            return (total + kwargs.get("beta", 1) * args[bias].float()).to(product.dtype)
        return func(*args, **kwargs)


class LargestFirst(TorchDispatchMode):
    """Multiplies the largest elements of a product first: where some order of it leaves the range of the type before a
    zero comes, this one does, and infinity times zero is NaN."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is not torch.ops.aten.prod or not out.is_floating_point():
            return out
        x, dim = args[0].to(out.dtype), args[1] if len(args) > 1 else None
        x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
        if not x.numel() or not x.dim():
            return out
        ordered = x.gather(dim, x.abs().argsort(dim, descending=True))
        return functools.reduce(torch.mul, ordered.unbind(dim)).reshape(out.shape)


_BY_SIGMOID = (
    torch.ops.aten.sigmoid.default,
    torch.ops.aten.silu.default,
    torch.ops.aten.silu_backward.default,
)


class Subnormals(TorchDispatchMode):
    """Computes sigmoids, and what is made of them, as far as their type goes: eager's are 0 where they are subnormal,
    and what follows may divide by them. Those of narrower types go through doubles."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BY_SIGMOID and args[0].dtype != torch.float64 and args[0].is_floating_point():
            wide = func(*(a.double() for a in args))
            return wide.to(args[0].dtype)
        out = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.sigmoid.default or args[0].dtype != torch.float64:
            return out
        small = [math.exp(v) if -746 < v < -707 else 0.0 for v in args[0].reshape(-1).tolist()]
        exact = torch.tensor(small, dtype=torch.float64).reshape(out.shape)
        return torch.where(exact > 0, exact, out)


class WithoutPadding(TorchDispatchMode):
    """Computes convolutions by their definition in float64, leaving out what would be padding. Channels-last kernels
    leave it out, too, but those of bfloat16 take subnormal numbers for zero, so that one times infinity is NaN."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.convolution.default or args[6] or args[0].is_complex():
            return func(*args, **(kwargs or {}))
        return _without_padding(*args[:6], args[8])


class OnPaddedInput(TorchDispatchMode):
    """Pads the input of a convolution with zeros before it, so that an infinite weight times padding is NaN. oneDNN's
    kernels multiply some positions of the padding and leave out others."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.convolution.default or args[6]:
            return func(*args, **(kwargs or {}))
        x, weight, bias, stride, padding, *rest = args
        padding = [*padding] * (x.dim() - 2 if len(padding) == 1 else 1)
        around = [p for p in reversed(padding) for _ in (0, 1)]
        padded = torch.nn.functional.pad(x, around)
        return func(padded, weight, bias, stride, [0] * len(padding), *rest)


def _without_padding(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:  # fmt: skip
    rank = x.dim() - 2
    stride, padding, dilation = (
        [*v] * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation)
    )
    around = [p for p in reversed(padding) for _ in (0, 1)]
    patches = torch.nn.functional.pad(x.double(), around)
    inside = torch.nn.functional.pad(torch.ones_like(x, dtype=torch.bool), around)
    for d in range(rank):
        size = (weight.shape[2 + d] - 1) * dilation[d] + 1
        patches = patches.unfold(2 + d, size, stride[d])[..., :: dilation[d]]
        inside = inside.unfold(2 + d, size, stride[d])[..., :: dilation[d]]
    over = [1, *range(2 + rank, 2 + 2 * rank)]  # channels of the group, and places of the kernel
    each, of = weight.shape[1], weight.shape[0] // groups
    found = []
    for channel, kernel in enumerate(weight.double()):
        part = slice(channel // of * each, (channel // of + 1) * each)
        factors = kernel.reshape(1, each, *[1] * rank, *kernel.shape[1:])
        found.append((patches[:, part] * factors).where(inside[:, part], 0.0).sum(over))
    y = torch.stack(found, 1)
    if bias is not None:
        y = y + bias.double().reshape(-1, *[1] * rank)
    return y.to(x.dtype)


class Dense(TorchDispatchMode):
    """Runs what is no view on row-major copies of its operands; what it writes to them is copied back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in _BY_SIZE:
            return _repeated(func, args, kwargs)
        aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        if aliases and not any(a.is_write for a in aliases):
            return func(*args, **kwargs)
        copies: dict[int, tuple[Tensor, Tensor]] = {}

        def dense(t: Tensor) -> Tensor:
            if t.is_contiguous() or t.layout != torch.strided:
                return t
            known = copies.get(id(t))
            if known is None:
                known = copies[id(t)] = (t, t.clone(memory_format=torch.contiguous_format))
            return known[1]

        args, kwargs = pytree.tree_map_only(Tensor, dense, (args, kwargs))
        out = func(*args, **kwargs)
        written = [
            a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
        ]
        names = [a.name for a in func._schema.arguments]
        places = [a for a, w in zip(args, written) if w]
        places += [v for k, v in kwargs.items() if written[names.index(k)]]
        changed = {id(t) for t in pytree.tree_leaves(places) if isinstance(t, Tensor)}
        originals = {}
        for t, copy in copies.values():
            if id(copy) in changed:
                t.copy_(copy)
                originals[id(copy)] = t
        return pytree.tree_map_only(Tensor, lambda t: originals.get(id(t), t), out)


class DenseAttention(TorchFunctionMode):
    """Attention on row-major operands. PyTorch takes it apart by their strides, above `Dense`: a NaN among the keys
    that a causal mask hides is NaN by the formula, and left out by the kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            dense = {
                k: v.contiguous() if isinstance(v, Tensor) else v for k, v in (kwargs or {}).items()
            }
            return func(*(a.contiguous() if isinstance(a, Tensor) else a for a in args), **dense)
        return func(*args, **(kwargs or {}))


def attention_by_formula() -> AbstractContextManager[Any]:
    """Attention as its formula says: the kernel for CPUs gives 0 for a row of NaN scores where there are fewer keys
    than a vector has elements, and NaN for causal masks beside negative scales."""
    return sdpa_kernel(SDPBackend.MATH)

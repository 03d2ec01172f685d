"""Eager with random rounding errors in every op: the possible distance between two correct results. And in float64.

Operands and results of each arithmetic op are moved by up to one unit in the last place, at random. A difference
between such runs (by cancellation, by a comparison of nearly equal numbers, by Adam's quotient of two small numbers)
is explained by rounding; other differences are not.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor

#: ops whose results are exact, or their operands' own elements
_EXACT = """
    clone copy _to_copy copy_ cat stack select slice index gather index_select embedding flip roll repeat where
    masked_fill masked_scatter constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d zeros ones full
    replication_pad1d replication_pad2d replication_pad3d zeros_like ones_like full_like empty empty_like
    new_zeros new_full new_empty new_ones fill zero neg abs relu sign sgn floor ceil trunc round maximum minimum
    fmax fmin amax amin max min argmax argmin sort argsort topk kthvalue median clamp clamp_min clamp_max eq ne
    lt le gt ge isnan isinf isfinite logical_not logical_and logical_or logical_xor bitwise_not bitwise_and
    bitwise_or bitwise_xor all any scatter index_copy index_fill index_put max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d tril triu eye arange scalar_tensor
    lift_fresh_copy one_hot cummax cummin take copysign signbit nan_to_num detach alias isposinf isneginf real
    imag view_as_real unfold_copy diag_embed as_strided threshold hardtanh positive searchsorted bucketize
    _local_scalar_dense _foreach_neg _foreach_zero _foreach_copy _foreach_abs _foreach_maximum
"""
EXACT = frozenset(_EXACT.split())


_CONTRACTIONS = """
    mm bmm addmm baddbmm addbmm dot vdot mv addmv addr convolution convolution_backward linear matmul
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_attention_math inner outer
"""
CONTRACTIONS = frozenset(_CONTRACTIONS.split())
#: composite ops, whose steps have rounding errors of their own
_COMPOSED = """
    _log_softmax _softmax _log_softmax_backward_data _softmax_backward_data logsumexp logaddexp logaddexp2 xlogy
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm_backward gelu gelu_backward silu silu_backward mish softplus softplus_backward elu
    elu_backward var std var_mean std_mean sigmoid_backward tanh_backward logit_backward huber_loss
    smooth_l1_loss log_sigmoid_forward log_sigmoid_backward binary_cross_entropy _native_batch_norm_legit
    native_batch_norm addcmul addcdiv lerp addmm baddbmm addmv std_mean norm linalg_vector_norm mse_loss
    nll_loss_forward nll_loss_backward sinc _fused_rms_norm cosine_similarity
"""


@functools.cache
def _decompositions() -> dict[Any, Any]:
    overloads = []
    for name in _COMPOSED.split():
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:
            overloads.append(packet)
    found = get_decompositions(overloads)
    found[torch.ops.aten.native_group_norm_backward.default] = _group_norm_backward
    return found


#: contractions that add a bias: name → (the bias's position among the arguments, the dimension of the result that it
#: runs along; None if it broadcasts). A program may round the product to the operands' type first.
_BIASED: dict[str, tuple[int, int | None]] = {
    "addmm": (0, None), "baddbmm": (0, None), "addmv": (0, None), "addbmm": (0, None), "linear": (2, None),
    "convolution": (2, 1), "mkldnn_convolution": (2, 1), "_convolution": (2, 1),
}  # fmt: skip
_HALVES = (torch.float16, torch.bfloat16)
#: operands and results that are flags (0 or 1) in a floating-point type
_MARKS = frozenset({"is_target"})


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, batch: int, channels: int,
    positions: int, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """By the definition. PyTorch's decomposition sums grad · x and grad separately, which is NaN for a whole group
    with an infinite gradient, where only the derivatives of some elements are infinite."""
    apart = (batch, groups, channels // groups, positions)
    g, centred = grad.reshape(apart), x.reshape(apart)
    centred = (centred - mean.reshape(batch, groups, 1, 1)) * rstd.reshape(batch, groups, 1, 1)
    scale = None if weight is None else weight.reshape(1, groups, channels // groups, 1)
    weighted = g if scale is None else g * scale
    by_x = weighted - weighted.mean((2, 3), keepdim=True)
    by_x = by_x - centred * (weighted * centred).mean((2, 3), keepdim=True)
    by_x = (by_x * rstd.reshape(batch, groups, 1, 1)).reshape(x.shape).to(x.dtype)
    found = (by_x, (g * centred).sum((0, 3)).reshape(channels), g.sum((0, 3)).reshape(channels))
    return tuple(f if w else None for f, w in zip(found, wanted))


def _base(func: Any) -> str:
    return func._schema.name.partition("::")[2].rstrip("_")


def _bias(func: Any, args: Any) -> Tensor | None:
    """The bias that a contraction in half precision adds to its product."""
    place = _BIASED.get(_base(func))
    found = args[place[0]] if place is not None and len(args) > place[0] else None
    return found if isinstance(found, Tensor) and found.dtype in _HALVES else None


def _is_exact(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call rounds nothing; an accumulating `index_put` adds."""
    name = _base(func)
    adds = name == "index_put" and (args[3] if len(args) > 3 else kwargs.get("accumulate"))
    return name in EXACT and not adds


class Noise(TorchDispatchMode):
    """A mode that moves operands and results of arithmetic ops.

    Args:
        units: by how many units in the last place.
        narrow: the dtype in which contractions are computed, if it is not their operands'.
    """

    def __init__(self, seed: int, units: float = 1.0, narrow: str = "") -> None:
        super().__init__()
        self.generator, self.units = torch.Generator().manual_seed(seed), units
        self.narrow = torch.finfo(getattr(torch, narrow)).eps if narrow else 0.0
        self.least = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        aliased = [a.alias_info for a in schema.arguments if a.alias_info is not None]
        writes = any(a.is_write for a in aliased)
        self.least = self.narrow if _base(func) in CONTRACTIONS else 0.0
        if (aliased and not writes) or _is_exact(func, args, kwargs):
            return func(*args, **kwargs)
        bias = None if writes else _bias(func, args)
        if bias is not None:
            return self._biased(func, args, kwargs, bias)
        decomposition = None if writes else _decompositions().get(func)
        if decomposition is not None:
            with self:
                parts = decomposition(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        names = [a.name for a in schema.arguments]
        moved = tuple(
            a if w or n in _MARKS else self._moved(a) for a, w, n in zip(args, written, names)
        )
        named = {k: v if written[names.index(k)] else self._moved(v) for k, v in kwargs.items()}
        try:
            out = func(*moved, **named)
        except RuntimeError:  # kernels check operands: a probability may be 1 at most
            out = func(*args, **kwargs)
        if not writes:
            parts = [r.name for r in schema.returns]
            if _MARKS.isdisjoint(parts):
                return self._moved(out)
            return tuple(o if n in _MARKS else self._moved(o) for o, n in zip(out, parts))
        places = [a for a, w in zip(args, written) if w]
        places += [v for k, v in kwargs.items() if written[names.index(k)]]
        for t in pytree.tree_leaves(places):
            if isinstance(t, Tensor) and t.numel() and (t.is_floating_point() or t.is_complex()):
                t.copy_(self._one(t))
        return out

    def _biased(self, func: Any, args: Any, kwargs: Any, bias: Tensor) -> Tensor:
        """A contraction in half precision: its product is rounded, and the bias may cancel most of it."""
        out = func(*map(self._moved, args), **kwargs)
        dim = _BIASED[_base(func)][1]
        if dim is not None:
            bias = bias.reshape(-1, *[1] * (out.dim() - 1 - dim))
        eps = max(torch.finfo(out.dtype).eps, self.least) * self.units
        u = torch.rand(out.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        moved = out.double() + eps * u * (out.double().abs() + bias.double().abs())
        return torch.empty_like(out).copy_(moved.to(out.dtype))

    def _moved(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, self._one, value)

    def _one(self, t: Tensor) -> Tensor:
        if t.is_complex() and not t._is_zerotensor():
            return torch.view_as_complex(
                self._one(torch.view_as_real(t.resolve_conj().contiguous()))
            )
        if not t.is_floating_point() or not t.numel() or t._is_zerotensor():
            return t  # autograd's zero tensors have no memory
        eps = max(torch.finfo(t.dtype).eps, self.least) * self.units
        u = torch.rand(t.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        moved = (t.double() * (1 + eps * u)).to(t.dtype)
        # the strides are kept, since views and memory formats depend on them
        result = (
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
            if all(t.stride())
            else torch.empty_like(t)
        )
        return result.copy_(moved)


class Exact(TorchDispatchMode):
    """A mode that computes in float64 what is floating-point, and gives all ops that make tensors that type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*pytree.tree_map(_wide, args), **pytree.tree_map(_wide, kwargs or {}))


def _wide(value: Any) -> Any:
    dtype = value.dtype if isinstance(value, Tensor) else value
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
        return value
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return value.to(wide) if isinstance(value, Tensor) else wide

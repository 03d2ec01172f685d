"""Scaled dot product attention, by whichever of PyTorch's kernels the device chose: `gflow.attention`.

PyTorch's tensors are [batch, head, position, channel], the op's [batch, position, head, channel]. The transposes
are views, since the result of a projection is stored in the op's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.ops import OPS

from ...dtypes import Unsupported, mlir_dtype
from ...emitter import Emitter, Value
from ...registry import lowers
from ..randomness import generator_state, next_stream

_SWAP = (0, 2, 1, 3)


def _swapped(em: Emitter, x: Value) -> Value:
    if x.rank != 4:
        raise Unsupported("attention over tensors that are not [batch, head, position, channel]")
    return em.transpose(x, _SWAP)


def _bias(bias: Value | None) -> list[Value]:
    if bias is None:
        return []
    if bias.rank > 4:
        raise Unsupported("a bias of more than four dimensions")
    return [bias.reshape((*[1] * (4 - bias.rank), *bias.shape))]


def _emit(em: Emitter, name: str, operands: Sequence[Value], attrs: dict[str, Any]) -> list[Value]:
    infer = OPS[name].infer
    assert infer is not None
    every = {key: attrs.get(key) for key in OPS[name].attrs}
    return em.create(name, operands, attrs, infer([x.type for x in operands], every))


def _attrs(q: Value, causal: bool, scale: float | None, dropout: float, stream: int | None) -> Any:
    if dropout >= 1.0:
        raise Unsupported("dropout of everything")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    attrs: dict[str, Any] = {"causal": bool(causal), "scale": float(scale)}
    if dropout:
        attrs |= {"dropout": float(dropout), "stream": stream}
    return attrs


def _forward(
    em: Emitter, q: Value, k: Value, v: Value, bias: Value | None, dropout: float, causal: bool,
    scale: float | None,
) -> tuple[Value, Value, int | None]:  # fmt: skip
    """The result, the logarithms of sums, and the stream that dropout draws from."""
    stream = next_stream(em) if dropout else None
    operands = [*(_swapped(em, x) for x in (q, k, v)), *_bias(bias)]
    if dropout:
        operands.append(generator_state(em))
    y, sums = _emit(em, "attention", operands, _attrs(q, causal, scale, dropout, stream))
    return em.transpose(y, _SWAP), sums, stream


def _backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, y: Value, sums: Value,
    bias: Value | None, dropout: float, causal: bool, scale: float | None,
    seed: Value | None = None, bias_grad: bool = False,
) -> list[Value | None]:  # fmt: skip
    """The gradients by q, k, v and the bias."""
    stream = None
    if dropout:
        if seed is None or seed.const is None:
            raise Unsupported("dropout whose stream is not known")
        stream = int(seed.const)
    operands = [_swapped(em, x) for x in (dy, q, k, v, y)]
    operands += [sums.reshape((q.shape[0], q.shape[1], q.shape[2])), *_bias(bias)]
    if dropout:
        operands.append(generator_state(em))
    attrs = _attrs(q, causal, scale, dropout, stream)
    if bias_grad:
        attrs["bias_grad"] = True
    grads: list[Value | None] = [*_emit(em, "attention_grad", operands, attrs)]
    found = [g if g is None else em.transpose(g, _SWAP) for g in grads[:3]]
    if not bias_grad:
        return [*found, None]
    assert bias is not None
    assert grads[3] is not None
    return [*found, grads[3].reshape(bias.shape)]


def _rest(em: Emitter, stream: int | None, first: int) -> list[Value | None]:
    """The results from number `first` on, which only the backward reads: all hold the dropout's stream."""
    return [
        None if want is None else em.full(stream or 0, want.shape, mlir_dtype(want.dtype))
        for want in em.current_results[first:]
    ]


def _fitted(em: Emitter, sums: Value) -> Value:
    """The log-sum-exp in the shape that this kernel of PyTorch gives; some kernels round the number of positions up."""
    want = em.current_results[1]
    if want is None or math.prod(want.shape) == sums.numel:
        return sums if want is None else sums.reshape(want.shape)
    if not math.prod(want.shape):
        return em.full(0, want.shape, sums.dtype)
    extra = want.shape[2] - sums.shape[2]
    return em.pad(sums, (0, 0, 0), (0, 0, extra))


# -- on the CPU


def _one_position(em: Emitter, q: Value, k: Value, v: Value, scale: float | None) -> list[Value]:
    """Attention of one query position, as in decoding with a cache: scores, softmax and weighted sum as fused loops.

    A call of PyTorch's kernel would have to be bound again whenever the cache has grown. Where all scores of a row are
    -inf, its weights are 0, as in that kernel."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q * k).sum([3]) * float(scale)  # [batch, head, position]
    top = em.reduce(scores, "max", [2], keepdim=True)
    hidden = em.compare("eq", top, -math.inf)
    e = em.select(hidden, 0.0, em("exp", scores - top))
    total = e.sum([2], keepdim=True)
    weights = em.unsqueeze(e / em.select(hidden, 1.0, total), 3)
    return [(weights * v).sum([2], keepdim=True), em("log", total) + top]


@lowers("aten._scaled_dot_product_flash_attention_for_cpu")
def on_cpu(
    em: Emitter, q: Value, k: Value, v: Value, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Value | None = None, scale: float | None = None,
) -> list[Value]:  # fmt: skip
    """Attention as ATen's CPU kernel: the result, [batch, heads, queries, channels], and logarithms of the
    rows' sums.

    Raises:
        Unsupported: there is dropout.
    """
    if dropout:
        raise Unsupported("dropout, which this kernel does not know")
    # its scores would be in half precision under mixed precision; the kernel accumulates them in float32
    plain = attn_mask is None and not causal and q.dtype in ("f32", "f64") and not em.halves
    if plain and q.rank == 4 and q.shape[2] == 1 and q.shape[:2] == k.shape[:2] and k.numel:
        return _one_position(em, q, k, v, scale)
    y, sums, _ = _forward(em, q, k, v, attn_mask, 0.0, causal, scale)
    return [y, sums]


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def on_cpu_backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, y: Value, sums: Value, dropout: float,
    causal: bool, *, attn_mask: Value | None = None, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of q, k and v.

    Raises:
        Unsupported: there is dropout.
    """
    if dropout:
        raise Unsupported("dropout, which this kernel does not know")
    return _backward(em, dy, q, k, v, y, sums, attn_mask, 0.0, causal, scale)[:3]


# -- on CUDA devices

#: channels of a head that kernels are made for; PyTorch's own takes more
_MOST_CHANNELS = 256


def _limits(q: Value, v: Value) -> None:
    if q.dtype == "f64" or max(q.shape[-1], v.shape[-1]) > _MOST_CHANNELS:
        raise Unsupported(f"attention over more than {_MOST_CHANNELS} channels, or of float64")


@lowers("aten._scaled_dot_product_flash_attention")
def flash(
    em: Emitter, q: Value, k: Value, v: Value, dropout: float = 0.0, causal: bool = False,
    debug_mask: bool = False, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Attention as ATen's flash kernel: the result, logarithms of the rows' sums, and what its backward takes."""
    _limits(q, v)
    y, sums, stream = _forward(em, q, k, v, None, dropout, causal, scale)
    return [y, _fitted(em, sums), *_rest(em, stream, 2)]


@lowers("aten._scaled_dot_product_flash_attention_backward")
def flash_backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, y: Value, sums: Value, cum_q: Any,
    cum_k: Any, max_q: Any, max_k: Any, dropout: float, causal: bool, seed: Value, offset: Any, *,
    scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of q, k and v; dropout masks are recomputed from the seed."""
    _limits(q, v)
    return _backward(em, dy, q, k, v, y, sums, None, dropout, causal, scale, seed)[:3]


@lowers("aten._scaled_dot_product_efficient_attention")
def efficient(
    em: Emitter, q: Value, k: Value, v: Value, bias: Value | None, compute_sums: bool,
    dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Attention as ATen's memory-efficient kernel, with a bias that is added to the scores."""
    _limits(q, v)
    y, sums, stream = _forward(em, q, k, v, bias, dropout, causal, scale)
    return [y, _fitted(em, sums), *_rest(em, stream, 2)]


@lowers("aten._scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, bias: Value | None, y: Value,
    sums: Value, seed: Value, offset: Any, dropout: float, wanted: Sequence[bool],
    causal: bool = False, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of q, k, v and the bias, as far as they are wanted."""
    _limits(q, v)
    if sums.rank == 3 and sums.shape[2] > q.shape[2]:
        sums = em.slice(sums, 2, 0, q.shape[2])
    grads = _backward(
        em, dy, q, k, v, y, sums, bias, dropout, causal, scale, seed, bias is not None and wanted[3]
    )
    return _as_wanted(em, grads)


@lowers("aten._scaled_dot_product_cudnn_attention")
def cudnn(
    em: Emitter, q: Value, k: Value, v: Value, bias: Value | None, compute_sums: bool,
    dropout: float = 0.0, causal: bool = False, debug_mask: bool = False, *,
    scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Attention as ATen's cuDNN kernel."""
    return efficient(em, q, k, v, bias, compute_sums, dropout, causal, scale=scale)


@lowers("aten._scaled_dot_product_fused_attention_overrideable")
def overrideable(
    em: Emitter, q: Value, k: Value, v: Value, bias: Value | None = None, dropout: float = 0.0,
    causal: bool = False, debug_mask: bool = False, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Attention as ATen's kernel for other devices."""
    return efficient(em, q, k, v, bias, True, dropout, causal, scale=scale)


@lowers("aten._scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, y: Value, sums: Value, seed: Value,
    offset: Any, bias: Value | None, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any,
    dropout: float, causal: bool, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of q, k and v."""
    _limits(q, v)
    return _backward(em, dy, q, k, v, y, sums, bias, dropout, causal, scale, seed)[:3]


@lowers("aten._scaled_dot_product_fused_attention_overrideable_backward")
def overrideable_backward(
    em: Emitter, dy: Value, q: Value, k: Value, v: Value, bias: Value | None,
    wanted: Sequence[bool], y: Value, sums: Value, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any,
    dropout: float, causal: bool, seed: Value, offset: Any, *, scale: float | None = None,
) -> list[Value | None]:  # fmt: skip
    """Gradients of q, k, v and the bias, as far as they are wanted."""
    _limits(q, v)
    bias_grad = bias is not None and wanted[3]
    grads = _backward(em, dy, q, k, v, y, sums, bias, dropout, causal, scale, seed, bias_grad)
    return _as_wanted(em, grads)


def _as_wanted(em: Emitter, grads: list[Value | None]) -> list[Value | None]:
    """A gradient for each result that the call has; where nobody asked for it, zeros."""
    found: list[Value | None] = []
    for want, grad in zip(em.current_results, grads):
        if want is None or grad is not None:
            found.append(grad)
        else:
            found.append(em.full(0, want.shape, mlir_dtype(want.dtype)))
    return found

"""Decompositions of attention, gradients of convolutions, reductions and random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.extents import varies
from gflow.dialects.ops.attention import bounds, extras
from gflow.dialects.ops.compute import conv_dims, kernel_dims
from gflow.dialects.ops.packed import packed_k, strip_of

from .functions import wide
from .terms import Term, iota, make, splat

Attrs = dict[str, Any]


# -- attention


def _heads(x: Term, heads: int) -> Term:
    """[batch, position, head, channel] as [batch, head, position, channel], with shared heads repeated."""
    x = wide(x).permute(0, 2, 1, 3)
    b, shared, t, c = x.shape
    if shared == heads:
        return x
    groups = heads // shared
    return x.spread((b, shared, groups, t, c), (0, 1, 3, 4)).reshape(b, heads, t, c)


def _shared(x: Term, shared: int) -> Term:
    """The transpose of `_heads`: [batch, position, head, channel], summed over the heads that share one."""
    b, heads, t, c = x.shape
    if shared != heads:
        x = x.reshape(b, shared, heads // shared, t, c).reduce("sum", 2)
    return x.permute(0, 2, 1, 3)


def _scores(q: Term, k: Term, extra: Sequence[Term], attrs: Attrs) -> Term:
    """extra: the operands besides the needed ones."""
    found = extras([t.type for t in extra], 0)
    bias = None if found.bias is None else extra[found.bias]
    scores = make("matmul", q, k.permute(0, 1, 3, 2)) * float(attrs["scale"])
    if bias is not None and bias.dtype == "i1":
        scores = bias.spread(scores.shape).where(scores, -math.inf)
    elif bias is not None:
        scores = scores + bias.to(scores.dtype).spread(scores.shape)
    left, right = bounds(attrs)
    if left is not None or right is not None:
        apart = iota(scores.shape, 3) - iota(scores.shape, 2)
        for predicate, bound in (("le", right), ("ge", None if left is None else -left)):
            if bound is not None:
                scores = apart.is_(predicate, bound).where(scores, -math.inf)
    if found.documents is not None:
        documents = zip(extra[found.documents :], (2, 3))
        of_q, of_k = (x.spread(scores.shape, (0, d)) for x, d in documents)
        scores = of_q.is_("eq", of_k).where(scores, -math.inf)
    return scores


def _kept(shape: tuple[int, ...], rng: Term, attrs: Attrs, dtype: str) -> Term:
    """The factors of dropout: 0 or 1 / (1 - p)."""
    dropout = attrs["dropout"]
    numbers = make("random", rng, kind="uniform", stream=attrs["stream"], shape=shape, dtype="f32")
    return numbers.is_("lt", 1.0 - dropout).to(dtype) * (1.0 / (1.0 - dropout))


def attention(terms: list[Term], attrs: Attrs) -> list[Term]:
    """softmax(q kᵀ · scale + bias) v, and the log-sum-exp of each row, by matrix products and reductions."""
    q, k, v = terms[:3]
    heads = q.shape[2]
    found = extras([t.type for t in terms], 3)
    scores = _scores(_heads(q, heads), _heads(k, heads), terms[3:], attrs)
    most = scores.reduce("max", 3)
    none = most.is_("eq", -math.inf)
    # a row may have no keys, and in some engines a maximum of -inf isn't -inf
    if found.bias is not None or found.documents is not None or attrs["window"]:
        none = make("not", scores.is_("ne", -math.inf).reduce("any", 3))
    most = none.where(0.0, most)
    weights = make("exp", scores - most.spread(scores.shape, (0, 1, 2)))
    total = weights.reduce("sum", 3)
    total = none.where(1.0, total)
    weights = weights / total.spread(scores.shape, (0, 1, 2))
    if attrs["dropout"]:
        assert found.rng is not None
        weights = weights * _kept(scores.shape, terms[found.rng], attrs, weights.dtype)
    y = make("matmul", weights, _heads(v, heads)).permute(0, 2, 1, 3).to(q.dtype)
    return [y, none.where(0.0, make("log", total) + most)]


def attention_grad(terms: list[Term], attrs: Attrs) -> list[Term]:
    """The gradients of `attention` for q, k, v and, if needed, the bias, from the saved log-sum-exp."""
    dy, q, k, v, y, sums = terms[:6]
    heads, shared = q.shape[2], k.shape[2]
    found = extras([t.type for t in terms], 6)
    bias = None if found.bias is None else terms[found.bias]
    qh, kh, vh, dyh = (_heads(x, heads) for x in (q, k, v, dy))
    scores = _scores(qh, kh, terms[6:], attrs)
    weights = make("exp", scores - sums.spread(scores.shape, (0, 1, 2)))
    weights = scores.is_("eq", -math.inf).where(0.0, weights)
    dweights = make("matmul", dyh, vh.permute(0, 1, 3, 2))
    used = weights
    if attrs["dropout"]:
        assert found.rng is not None
        kept = _kept(scores.shape, terms[found.rng], attrs, weights.dtype)
        used, dweights = weights * kept, dweights * kept
    dv = make("matmul", used.permute(0, 1, 3, 2), dyh)
    rows = (dyh * _heads(y, heads)).reduce("sum", 3)
    dscores = weights * (dweights - rows.spread(scores.shape, (0, 1, 2)))
    dq = make("matmul", dscores, kh) * float(attrs["scale"])
    dk = make("matmul", dscores.permute(0, 1, 3, 2), qh) * float(attrs["scale"])
    grads = [
        dq.permute(0, 2, 1, 3).to(q.dtype), _shared(dk, shared).to(k.dtype),
        _shared(dv, shared).to(v.dtype),
    ]  # fmt: skip
    if attrs.get("bias_grad"):
        assert bias is not None
        once = [d for d in range(4) if bias.shape[d] == 1 and scores.shape[d] != 1]
        total = dscores.reduce("sum", *once) if once else dscores
        grads.append(total.reshape(*bias.shape).to(bias.dtype))
    return grads


# -- convolutions


def weight_grad(x: Term, dy: Term, attrs: Attrs) -> Term:
    """The weight's gradient as a convolution: channels of x are the batch, dy is the weight, and stride and dilation
    are exchanged."""
    layout, groups = attrs["layout"], attrs["groups"]
    rank = x.type.rank
    n, c, spatial = conv_dims(layout, rank)
    o, i, sizes = kernel_dims(layout, rank)
    shape = attrs["shape"]
    xs = x.permute(n, c, *spatial)
    batch, channels, *size = xs.shape
    per = channels // groups
    xs = xs.reshape(batch, groups, per, *size).permute(2, 1, 0, *range(3, rank + 1))
    xs = xs.reshape(per, groups * batch, *size)
    dys = dy.permute(c, n, *spatial)
    strided = {
        "stride": attrs["dilation"], "dilation": attrs["stride"], "padding": attrs["padding"],
        "groups": groups, "layout": "NC*",
    }  # fmt: skip
    found = make("convolution", xs, dys, **strided)  # [per, outputs, *]
    for d, s in enumerate(sizes):
        found = found.slice(2 + d, 0, shape[s])
    found = found.permute(1, 0, *range(2, rank))
    order = [0] * rank
    for at, d in enumerate((o, i, *sizes)):
        order[d] = at
    return found.permute(*order)


def packed_product(x: Term, weight: Term, attrs: Attrs) -> Term:
    """A `packed_product`: the weight is unpacked, then a matrix product or a channels-last convolution follows."""
    k = packed_k(x.type, attrs)
    strips, strip = weight.shape[0], strip_of(weight.type, k)
    rows = weight.reshape(strips, k, strip).permute(0, 2, 1).reshape(strips * strip, k)
    rows = rows.slice(0, 0, attrs["columns"])
    if not attrs["kernel"]:
        lines = x.reshape(math.prod(x.shape[:-1]), k)
        found = make("matmul", lines, rows.permute(1, 0))
        return found.reshape(*x.shape[:-1], attrs["columns"])
    groups = attrs["columns"] if attrs.get("depthwise") else 1
    kernel = rows.reshape(attrs["columns"], *attrs["kernel"], x.shape[-1] // groups)
    moved = {name: attrs[name] for name in ("stride", "padding", "dilation")}
    return make("convolution", x, kernel, groups=groups, layout="N*C", **moved)


# -- reductions


def reduce(x: Term, attrs: Attrs) -> Term:
    """Reductions: argmax and argmin by comparison with the extremum; sums and products of half precision in float32."""
    kind, dims = attrs["kind"], tuple(attrs["dims"])
    if kind not in ("argmax", "argmin"):
        if attrs.get("dtype") is not None:
            return make("reduce", x.to("f64"), kind=kind, dims=dims)
        return make("reduce", x.to("f32"), kind=kind, dims=dims).to(x.dtype)
    (dim,) = dims
    if x.dtype == "i1":
        x = x.to("i32")
    others = [d for d in range(len(x.shape)) if d != dim]
    best = x.reduce(kind.removeprefix("arg"), dim).spread(x.shape, others)
    found = x.is_("eq", best)
    if x.dtype in ("f64", "f32", "f16", "bf16"):
        found = found | make("is_nan", x)
    places = found.where(iota(x.shape, dim), x.shape[dim])
    return places.reduce("min", dim)


def partial_sums(x: Term, attrs: Attrs) -> Term:
    """Sums over runs of rows; the last run is padded with zeros."""
    run, width = attrs["run"], x.shape[-1]
    rows = math.prod(x.shape[:-1])
    count = -(-rows // run)
    flat = x.reshape(rows, width)
    if count * run != rows:
        zero = splat(0.0, (), x.dtype)
        flat = make("pad", flat, zero, low=(0, 0), high=(count * run - rows, 0))
    return flat.reshape(count, run, width).reduce("sum", 1)


# -- random numbers (docs/random.md)

_LOW = 0xFFFFFFFF


def random(rng: Term, attrs: Attrs) -> Term:
    """Philox 4x32-10, on 32-bit words in int64."""
    shape, dtype, kind = tuple(attrs["shape"]), attrs["dtype"], attrs["kind"]
    count = math.prod(shape)
    if count == 0:
        return splat(0, shape, dtype)
    # with a dynamic number of elements, enough blocks for all sizes; the unused ones are dropped
    blocks = count if varies(count) else -(-count // 4)
    seed, offset = (rng.slice(0, i, i + 1).spread((blocks,)) for i in range(2))
    block = iota((blocks,), 0)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    c = [block & _LOW, block >> 32, splat(attrs["stream"] & _LOW, (blocks,), "i64"), offset & _LOW]
    for step in range(10):
        if step:
            k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            ((p1 >> 32) & _LOW) ^ c[1] ^ k0, p1 & _LOW,
            ((p0 >> 32) & _LOW) ^ c[3] ^ k1, p0 & _LOW,
        ]  # fmt: skip
    if kind == "bits":
        return _lanes(c, count).to(dtype).reshape(*shape)
    unit = [(w >> 8).to("f32") * 2.0**-24 for w in c]
    if kind == "normal":
        lanes = []
        for u1, u2 in (unit[:2], unit[2:]):
            radius = make("sqrt", make("log", 1.0 - u1) * -2.0)
            angle = u2 * (2.0 * math.pi)
            lanes += [radius * make("cos", angle), radius * make("sin", angle)]
        unit = lanes
    return _lanes(unit, count).to(dtype).reshape(*shape)


def _lanes(words: list[Term], count: int) -> Term:
    columns = [w.reshape(w.shape[0], 1) for w in words]
    joined = make("concatenate", *columns, dim=1)
    return joined.reshape(4 * words[0].shape[0]).slice(0, 0, count)

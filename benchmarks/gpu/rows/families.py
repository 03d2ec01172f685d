"""What numerics are checked on: functions of every family of ops, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

#: makes an input of a shape: `normal`, `positive`, `index` (below a bound), `mask`
Make = Callable[..., Tensor]


@dataclass(frozen=True)
class Family:
    """inputs: of a maker, and a number that sizes grow with (1 for a stand-in, 8 on a GPU).

    integers: the function takes no floats, so that one element type is enough.
    """

    name: str
    function: Callable[..., object]
    inputs: Callable[[Make, int], list[Tensor]]
    integers: bool = False


def _chain(a: Tensor, b: Tensor) -> list[Tensor]:
    return [F.gelu(a) * torch.tanh(b) + F.silu(a - b), torch.where(a > b, a.exp(), b.sigmoid())]


def _functions(a: Tensor) -> list[Tensor]:
    return [a.log(), a.sqrt(), a.rsqrt(), a.pow(1.7), a.erf(), a.log1p(), a.sin() * a.cos()]


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w


def _batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _pools(x: Tensor) -> list[Tensor]:
    return [
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, 3),
    ]


FAMILIES = (
    Family("pointwise chain", _chain, lambda m, n: [m(37 * n, 65), m(37 * n, 65)]),
    Family("functions", _functions, lambda m, n: [m(33 * n, 17, kind="positive")]),
    Family(
        "broadcast and transpose",
        lambda a, b, c: (a + b[:, None]).transpose(0, 1) * c,
        lambda m, n: [m(19, 33 * n), m(19), m(33 * n, 19)],
    ),
    Family(
        "row reductions",
        lambda x: [x.sum(-1), x.mean(-1), x.var(-1), x.amax(-1), x.logsumexp(-1)],
        lambda m, n: [m(17, 129 * n)],
    ),
    Family("column reductions", lambda x: [x.sum(0), x.amax(0), x.mean(0)], lambda m, n: [m(131 * n, 37)]),
    Family("full reductions", lambda x: [x.sum(), x.abs().max()], lambda m, n: [m(131 * n, 37)]),
    Family("softmax", lambda x: [x.softmax(-1), x.log_softmax(-1)], lambda m, n: [m(9, 257 * n)]),
    Family("softmax over columns", lambda x: x.softmax(0), lambda m, n: [m(67 * n, 9)]),
    Family(
        "layer norm",
        lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
        lambda m, n: [m(13, 96 * n), m(96 * n), m(96 * n)],
    ),
    Family("rms norm", _rms_norm, lambda m, n: [m(13, 96 * n), m(96 * n)]),
    Family("batch norm", _batch_norm, lambda m, n: [m(4 * n, 6, 5, 7), m(6), m(6)]),
    Family(
        "group norm",
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda m, n: [m(2 * n, 6, 5, 7), m(6), m(6)],
    ),
    Family("matmul", lambda a, b: a @ b, lambda m, n: [m(33 * n, 40), m(40, 21 * n)]),
    Family("matmul, transposed", lambda a, b: a.t() @ b.t(), lambda m, n: [m(40 * n, 33), m(21, 40 * n)]),
    Family("batched matmul", torch.bmm, lambda m, n: [m(3, 17 * n, 24), m(3, 24, 19)]),
    Family(
        "linear with epilogue",
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        lambda m, n: [m(21 * n, 32), m(24, 32), m(24), m(21 * n, 24)],
    ),
    Family(
        "convolution",
        lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, padding=1)),
        lambda m, n: [m(2 * n, 5, 9, 11), m(7, 5, 3, 3), m(7)],
    ),
    Family("1x1 convolution", F.conv2d, lambda m, n: [m(2 * n, 16, 6, 5), m(24, 16, 1, 1)]),
    Family(
        "depthwise convolution",
        lambda x, w: F.conv2d(x, w, padding=1, groups=8),
        lambda m, n: [m(2 * n, 8, 7, 9), m(8, 1, 3, 3)],
    ),
    Family(
        "grouped convolution",
        lambda x, w: F.conv2d(x, w, padding=1, groups=2, dilation=2),
        lambda m, n: [m(2 * n, 6, 9, 9), m(8, 3, 3, 3)],
    ),
    Family(
        "transposed convolution",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        lambda m, n: [m(2 * n, 6, 5, 5), m(6, 4, 3, 3)],
    ),
    Family("1-d convolution", lambda x, w: F.conv1d(x, w, padding=2), lambda m, n: [m(2, 6, 31 * n), m(8, 6, 5)]),
    Family(
        "attention, causal", _attention, lambda m, n: [m(2, 2, 35 * n, 16) for _ in range(3)]
    ),
    Family(
        "attention, masked",
        _masked_attention,
        lambda m, n: [*(m(2, 2, 18 * n, 32) for _ in range(3)), m(18 * n, 18 * n, kind="mask")],
    ),
    Family(
        "attention, grouped queries",
        _grouped_attention,
        lambda m, n: [m(2, 4, 33 * n, 16), m(2, 2, 33 * n, 16), m(2, 2, 33 * n, 16)],
    ),
    Family(
        "embedding",
        lambda i, w: F.embedding(i, w) * 2,
        lambda m, n: [m(5, 7 * n, kind="index", bound=23), m(23, 18)],
    ),
    Family(
        "cross entropy",
        lambda x, t: F.cross_entropy(x, t),
        lambda m, n: [m(11 * n, 301), m(11 * n, kind="index", bound=301)],
    ),
    Family("pooling", _pools, lambda m, n: [m(2 * n, 3, 12, 12)]),
    Family(
        "gather and take",
        lambda x, i: [x.gather(1, i), x.index_select(0, i[:, 0])],
        lambda m, n: [m(9, 9 * n), m(9, 4, kind="index", bound=9)],
    ),
    Family(
        "index_add",
        lambda x, i, s: x.index_add(0, i, s),
        lambda m, n: [m(9, 13), m(14 * n, kind="index", bound=9), m(14 * n, 13)],
    ),
    Family("scan", lambda x: [x.cumsum(-1), x.cumsum(0)], lambda m, n: [m(7, 33 * n)]),
    Family(
        "sort and top-k",
        lambda x: [x.sort(-1)[0], x.topk(3, -1)[0]],
        lambda m, n: [m(7, 33 * n, kind="distinct")],
    ),
    Family(
        "concatenate, pad, slice, flip",
        lambda a, b: F.pad(torch.cat([a, b], 1)[:, 2:-1], (1, 2)).flip(0),
        lambda m, n: [m(9, 5 * n), m(9, 7)],
    ),
    Family(
        "integers",
        lambda a, b: [a + b, a * b, a // (b.abs() + 1), a % (b.abs() + 1), a & b, (a > b).sum(0)],
        lambda m, n: [m(19, 11 * n, kind="index", bound=1000), m(19, 11 * n, kind="index", bound=99)],
        integers=True,
    ),
)  # fmt: skip

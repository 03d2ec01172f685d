"""Matrix products against cuBLAS, convolutions against cuDNN, attention against PyTorch's fastest kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.graphs import gradients
from benchmarks.gpu.record import Row
from benchmarks.gpu.rows.work import Work, measure
from benchmarks.gpu.setting import Setting

Run = Callable[[], Any]

#: rows, columns, terms: of GPT-2 small and BERT-base (8×1024 tokens), of a Llama layer of 2048, and square
PRODUCTS = (
    (8192, 2304, 768), (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, 50304, 768),
    (768, 3072, 8192), (4096, 2048, 2048), (4096, 8192, 2048), (4096, 2048, 8192), (4096, 4096, 4096),
    (8192, 8192, 8192), (128, 1000, 2048),
)  # fmt: skip
#: of ResNet-50 and MobileNetV2: channels in and out, size of the picture, kernel, stride, groups
CONVOLUTIONS = (
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 1), (256, 512, 56, 1, 2, 1),
    (128, 128, 28, 3, 1, 1), (256, 256, 14, 3, 1, 1), (512, 512, 7, 3, 1, 1), (2048, 512, 7, 1, 1, 1),
    (96, 96, 112, 3, 2, 96), (192, 192, 28, 3, 1, 192), (960, 960, 7, 3, 1, 960),
)  # fmt: skip
#: batch, heads of queries and of keys, length, head size, causal
ATTENTIONS = (
    (8, 12, 12, 1024, 64, True), (8, 12, 12, 512, 64, False), (4, 32, 8, 2048, 64, True),
    (4, 16, 16, 4096, 128, True), (2, 16, 16, 8192, 128, True), (2, 8, 8, 2048, 256, False),
)  # fmt: skip


def rows(setting: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """A row for each product, convolution and attention; `ratio` above 1: gflow is faster."""
    for name, make in works(setting):
        yield name, partial(_measure, setting, make)


def _measure(setting: Setting, make: Callable[[], Work]) -> Row:
    return measure(setting, make(), alone=True)


def works(setting: Setting) -> Iterator[tuple[str, Callable[[], Work]]]:
    """The works by name."""
    tiny = setting.small
    for m, n, k in ((17, 33, 20),) if tiny else PRODUCTS:
        yield f"matmul bf16 {m}×{n}×{k}", partial(product, setting, m, n, k)
    for m, n, k in ((17, 33, 20),) if tiny else PRODUCTS[-3:-2]:
        name = f"matmul float32 {m}×{n}×{k}"
        yield name, partial(product, setting, m, n, k, dtype=torch.float32)
    for *shape, causal in ((1, 2, 2, 33, 16, True),) if tiny else ATTENTIONS:
        name = f"attention bf16 {'×'.join(map(str, shape))}{' causal' if causal else ''}"
        run = partial(attention, setting, *shape, causal=causal)
        yield name, partial(run, backward=False)
        yield f"{name}, gradients", partial(run, backward=True)
    for c, o, size, kernel, stride, groups in ((8, 8, 6, 3, 1, 8),) if tiny else CONVOLUTIONS:
        name = f"conv bf16 {c}→{o} at {size}², {kernel}×{kernel}/{stride}"
        name += f", {groups} groups" if groups > 1 else ""
        conv = partial(convolution, setting, c, o, size, kernel, stride, groups)
        yield name, partial(conv, backward=False)
        yield f"{name}, gradients", partial(conv, backward=True)


def product(setting: Setting, m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Work:
    a, b = setting.normal(m, k, dtype=dtype), setting.normal(n, k, dtype=dtype, seed=1)
    return Work(
        lambda a, b: [a @ b.t()], [a, b], peers={"cublas": lambda: a @ b.t()}, flops=2.0 * m * n * k
    )


def convolution(
    setting: Setting,
    c: int,
    o: int,
    size: int,
    kernel: int,
    stride: int,
    groups: int,
    *,
    backward: bool,
) -> Work:
    batch = setting.size(128, 2)
    last = torch.channels_last
    x = setting.normal(batch, c, size, size).to(memory_format=last)
    w = setting.normal(o, c // groups, kernel, kernel, seed=1).to(memory_format=last)

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=stride, padding=kernel // 2, groups=groups)

    wide = (size + 2 * (kernel // 2) - kernel) // stride + 1
    flops = 2.0 * batch * o * wide * wide * w[0].numel()
    if not backward:
        return Work(
            lambda x, w: [forward(x, w)],
            [x, w],
            peers={"cudnn": lambda: forward(x, w)},
            flops=flops,
        )
    dy = setting.normal(batch, o, wide, wide, seed=2).to(memory_format=last)
    geometry = (
        [0],
        [stride] * 2,
        [kernel // 2] * 2,
        [1, 1],
        False,
        [0, 0],
        groups,
        [True, True, False],
    )

    def cudnn() -> Any:
        return torch.ops.aten.convolution_backward(dy, x, w, *geometry)

    return Work(
        lambda x, w, dy: gradients(forward, [x, w], [dy])[1:], [x, w, dy],
        peers={"cudnn": cudnn}, flops=2 * flops,
    )  # fmt: skip


@contextmanager
def _kernels(backend: SDPBackend) -> Iterator[None]:
    with sdpa_kernel(backend):
        yield


_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def attention(
    setting: Setting,
    batch: int,
    heads: int,
    kv: int,
    length: int,
    width: int,
    *,
    causal: bool,
    backward: bool,
) -> Work:
    q = setting.normal(batch, heads, length, width)
    k, v = (setting.normal(batch, kv, length, width, seed=n) for n in (1, 2))
    dy = setting.normal(batch, heads, length, width, seed=3)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv)

    flops = 4.0 * batch * heads * length * length * width * (0.5 if causal else 1.0)
    function: Callable[..., list[Tensor]] = lambda q, k, v: [forward(q, k, v)]  # noqa: E731
    inputs = [q, k, v]
    if backward:
        function = lambda q, k, v, dy: gradients(forward, [q, k, v], [dy])[1:]  # noqa: E731
        inputs, flops = [q, k, v, dy], flops * 3.5

    def through(backend: SDPBackend) -> Run:
        def run() -> Any:
            with _kernels(backend):
                return function(*inputs)

        return run

    backends = {"math": SDPBackend.MATH} if setting.stand_in else _BACKENDS
    peers = {name: through(b) for name, b in backends.items()}
    return Work(function, inputs, partial(by_heads, function), peers, flops)


def by_heads(function: Callable[..., list[Tensor]], *inputs: Tensor) -> list[Tensor]:
    """A function of attention's operands, one sample and head of keys at a time: in float64 all of the scores
    would be tens of gigabytes."""
    batch, kv = inputs[1].shape[:2]
    found: list[list[list[Tensor]]] = []
    for sample in range(batch):
        parts = [
            function(*(_of_head(t[sample : sample + 1], head, kv) for t in inputs))
            for head in range(kv)
        ]
        found.append([list(p) for p in zip(*parts)])
    return [torch.cat([torch.cat(sample[n], 1) for sample in found]) for n in range(len(found[0]))]


def _of_head(t: Tensor, head: int, kv: int) -> Tensor:
    """What belongs to a head of keys: several heads of queries share one."""
    group = t.shape[1] // kv
    return t[:, head * group : (head + 1) * group]

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

from benchmarks.gpu.graphs import gradients, graph_of
from benchmarks.gpu.setting import Setting, best_ratio, error_of, medians

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


def run(setting: Setting) -> list[dict[str, Any]]:
    """A row for each product, convolution and attention; `ratio` above 1: gflow is faster."""
    rows: list[dict[str, Any]] = []
    for name, measure in _items(setting):
        if not setting.wants(f"contractions {name}"):
            continue
        try:
            rows.append({"name": name, "ok": True, **measure()})
        except Exception as error:
            rows.append({"name": name, "ok": False, "error": error_of(error)})
    return rows


def _items(setting: Setting) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    tiny = setting.stand_in
    for m, n, k in ((17, 33, 20),) if tiny else PRODUCTS:
        yield f"matmul bf16 {m}×{n}×{k}", partial(product, setting, m, n, k)
    for m, n, k in ((17, 33, 20),) if tiny else PRODUCTS[-3:-2]:
        name = f"matmul float32 {m}×{n}×{k}"
        yield name, partial(product, setting, m, n, k, dtype=torch.float32)
    for c, o, size, kernel, stride, groups in ((8, 8, 6, 3, 1, 8),) if tiny else CONVOLUTIONS:
        name = f"conv bf16 {c}→{o} at {size}², {kernel}×{kernel}/{stride}"
        name += f", {groups} groups" if groups > 1 else ""
        conv = partial(convolution, setting, c, o, size, kernel, stride, groups)
        yield name, partial(conv, backward=False)
        yield f"{name}, gradients", partial(conv, backward=True)
    for *shape, causal in ((1, 2, 2, 33, 16, True),) if tiny else ATTENTIONS:
        name = f"attention bf16 {'×'.join(map(str, shape))}{' causal' if causal else ''}"
        run = partial(attention, setting, *shape, causal=causal)
        yield name, partial(run, backward=False)
        yield f"{name}, gradients", partial(run, backward=True)


def _tensor(setting: Setting, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    random = setting.generator(sum(shape))
    return torch.randn(shape, generator=random, device=setting.where).to(dtype)


def _beside(setting: Setting, peers: dict[str, Run], flops: float) -> dict[str, Any]:
    """gflow beside peers; those that cannot run are left out, with what they said."""
    failed = {}
    for name, peer in list(peers.items()):
        if name != "gflow":
            try:
                peer()
                setting.sync()
            except Exception as error:
                failed[name] = error_of(error)
                del peers[name]
    samples = setting.interleaved(peers)
    found = medians(samples)
    return {
        "ms": found,
        "ratio": best_ratio(samples, "gflow", [p for p in peers if p != "gflow"]),
        "tflop_per_s": flops / found["gflow"] / 1e9,
        "failed": failed,
    }


def product(
    setting: Setting, m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    a, b = _tensor(setting, m, k, dtype=dtype), _tensor(setting, n, k, dtype=dtype)
    graph = graph_of(setting, lambda a, b: [a @ b.t()])
    return _beside(
        setting, {"gflow": lambda: graph(a, b), "cublas": lambda: a @ b.t()}, 2.0 * m * n * k
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
) -> dict[str, Any]:
    batch = setting.size(128, 2)
    last = torch.channels_last
    x = _tensor(setting, batch, c, size, size).to(memory_format=last)
    w = _tensor(setting, o, c // groups, kernel, kernel).to(memory_format=last)

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=stride, padding=kernel // 2, groups=groups)

    y = forward(x, w)
    flops = 2.0 * y.numel() * w[0].numel()
    if not backward:
        graph = graph_of(setting, lambda x, w: [forward(x, w)])
        return _beside(
            setting, {"gflow": lambda: graph(x, w), "cudnn": lambda: forward(x, w)}, flops
        )
    dy = torch.randn_like(y)
    both = lambda x, w, dy: gradients(forward, [x, w], [dy])[1:]  # noqa: E731
    graph = graph_of(setting, both)
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

    return _beside(setting, {"gflow": lambda: graph(x, w, dy), "cudnn": cudnn}, 2 * flops)


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
) -> dict[str, Any]:
    q = _tensor(setting, batch, heads, length, width)
    k, v = (_tensor(setting, batch, kv, length, width) for _ in range(2))

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv)

    flops = 4.0 * batch * heads * length * length * width * (0.5 if causal else 1.0)
    dy = torch.randn_like(q)
    if backward:
        function = lambda q, k, v, dy: gradients(forward, [q, k, v], [dy])[1:]  # noqa: E731
        flops *= 3.5
    else:
        function = lambda q, k, v, dy: [forward(q, k, v)]  # noqa: E731
    graph = graph_of(setting, function)

    def through(backend: SDPBackend) -> Run:
        def run() -> Any:
            with _kernels(backend):
                return function(q, k, v, dy)

        return run

    backends = {"math": SDPBackend.MATH} if setting.stand_in else _BACKENDS
    peers: dict[str, Run] = {name: through(b) for name, b in backends.items()}
    return _beside(setting, {"gflow": lambda: graph(q, k, v, dy), **peers}, flops)

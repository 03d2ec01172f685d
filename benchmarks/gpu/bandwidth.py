"""Memory-bound kernels as a share of the copy bandwidth that the same run measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.graphs import gradients, graph_of, tensors_of
from benchmarks.gpu.setting import Setting, error_of, medians


@dataclass(frozen=True)
class Kernel:
    """shapes: of the inputs, by rows and columns of the work. gradient: of the inputs, too."""

    name: str
    function: Callable[..., object]
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    dtype: torch.dtype = torch.bfloat16
    gradient: bool = False


def _same(count: int) -> Callable[[int, int], list[tuple[int, ...]]]:
    return lambda rows, columns: [(rows, columns)] * count


def _norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> list[Tensor]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return [p - 1e-3 * m / (v.sqrt() + 1e-8), m, v]


KERNELS = (
    Kernel("relu(a * b + c) float32", lambda a, b, c: F.relu(a * b + c), _same(3), torch.float32),
    Kernel("relu(a * b + c)", lambda a, b, c: F.relu(a * b + c), _same(3)),
    Kernel("GELU", F.gelu, _same(1)),
    Kernel("transposed sum", lambda a, b: a + b.t(), lambda r, c: [(r, c), (c, r)]),
    Kernel("bias and residual", lambda a, b, c: a + b + c, lambda r, c: [(r, c), (c,), (r, c)]),
    Kernel("row sum", lambda a: a.sum(-1), _same(1)),
    Kernel("column sum", lambda a: a.sum(0), _same(1)),
    Kernel("softmax", lambda a: a.softmax(-1), _same(1)),
    Kernel("layer norm", _norm, lambda r, c: [(r, c), (c,), (c,)]),
    Kernel("layer norm, gradients", _norm, lambda r, c: [(r, c), (c,), (c,)], gradient=True),
    Kernel("GELU, gradient", F.gelu, _same(1), gradient=True),
    Kernel("Adam update", _adam, _same(4), torch.float32),
)


def run(setting: Setting) -> list[dict[str, Any]]:
    """The copy, then each kernel beside eager."""
    copied = copy_bandwidth(setting)
    rows: list[dict[str, Any]] = [{"name": "copy", "ok": True, "gb_per_s": copied}]
    for kernel in KERNELS:
        if not setting.wants(f"bandwidth {kernel.name}"):
            continue
        try:
            rows.append({"name": kernel.name, "ok": True, **measure(setting, kernel, copied)})
        except Exception as error:
            rows.append({"name": kernel.name, "ok": False, "error": error_of(error)})
    return rows


def copy_bandwidth(setting: Setting) -> float:
    """GB/s of PyTorch's device-to-device copy, bytes read and written."""
    size = setting.size(1 << 30, 1 << 12)
    source = torch.empty(size, dtype=torch.uint8, device=setting.where)
    target = torch.empty_like(source)
    found = medians(setting.interleaved({"copy": lambda: target.copy_(source)}))["copy"]
    return 2 * size / found / 1e6


def measure(setting: Setting, kernel: Kernel, copied: float) -> dict[str, Any]:
    """Milliseconds, GB/s by the bytes that must be moved, and the share of the copy's."""
    rows, columns = setting.size(65536, 24), setting.size(4096, 48)
    random = setting.generator()
    inputs = [
        torch.randn(shape, generator=random, device=setting.where).to(kernel.dtype)
        for shape in kernel.shapes(rows, columns)
    ]
    function: Callable[..., list[Tensor]] = lambda *xs: tensors_of(kernel.function(*xs))  # noqa: E731
    results = function(*inputs)
    moved = [*inputs, *results]
    if kernel.gradient:
        weights = [torch.randn_like(r) for r in results]
        count = len(inputs)
        function = lambda *xs: gradients(kernel.function, xs[:count], xs[count:])[1:]  # noqa: E731
        moved = [*inputs, *weights, *inputs]
        inputs = [*inputs, *weights]
    nbytes = sum(t.numel() * t.element_size() for t in moved)
    graph = graph_of(setting, function)
    samples = setting.interleaved(
        {"gflow": lambda: graph(*inputs), "eager": lambda: function(*inputs)}
    )
    found = medians(samples)
    reached = {name: nbytes / ms / 1e6 for name, ms in found.items()}
    return {
        "ms": found,
        "gb_per_s": reached["gflow"],
        "gb_per_s_eager": reached["eager"],
        "of_copy": reached["gflow"] / copied,
        "of_copy_eager": reached["eager"] / copied,
    }

"""Memory-bound kernels as a share of the copy bandwidth that the same run measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.graphs import gradients, tensors_of
from benchmarks.gpu.record import Row
from benchmarks.gpu.rows.work import Work
from benchmarks.gpu.rows.work import measure as work_measure
from benchmarks.gpu.setting import Setting, medians


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


def rows(setting: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """The copy, then each kernel beside eager."""
    yield "copy", lambda: {"ok": True, "gb_per_s": copy_bandwidth(setting)}
    for kernel in KERNELS:
        yield kernel.name, partial(measure, setting, kernel)


@cache
def copy_bandwidth(setting: Setting) -> float:
    """GB/s of PyTorch's device-to-device copy, bytes read and written."""
    size = setting.size(1 << 30, 1 << 12)
    source = torch.empty(size, dtype=torch.uint8, device=setting.where)
    target = torch.empty_like(source)
    found = medians(setting.interleaved({"copy": lambda: target.copy_(source)}))["copy"]
    return 2 * size / found / 1e6


def work_of(setting: Setting, kernel: Kernel) -> tuple[Work, int]:
    """A kernel's work, and the bytes that it has to move."""
    shape = setting.size(65536, 24), setting.size(4096, 48)
    inputs = [setting.normal(*s, dtype=kernel.dtype) for s in kernel.shapes(*shape)]
    function: Callable[..., list[Tensor]] = lambda *xs: tensors_of(kernel.function(*xs))  # noqa: E731
    if kernel.gradient:
        weights = [setting.normal(*shape, dtype=kernel.dtype, seed=1)]
        count = len(inputs)
        function = lambda *xs: gradients(kernel.function, xs[:count], xs[count:])[1:]  # noqa: E731
        moved = [*inputs, *weights, *inputs]
        inputs = [*inputs, *weights]
    else:
        with torch.device("meta"):
            results = function(*(torch.empty_like(t, device="meta") for t in inputs))
        moved = [*inputs, *results]
    nbytes = sum(t.numel() * t.element_size() for t in moved)
    work = Work(function, inputs, peers={"eager": lambda: function(*inputs)})
    return work, nbytes


def measure(setting: Setting, kernel: Kernel) -> Row:
    """Errors, milliseconds, GB/s by the bytes that must be moved, and the share of the copy's."""
    work, nbytes = work_of(setting, kernel)
    row, copied = work_measure(setting, work, alone=False), copy_bandwidth(setting)
    reached = {name: nbytes / ms / 1e6 for name, ms in row["ms"].items()}
    return {
        **row,
        "gb_per_s": reached["gflow"],
        "gb_per_s_eager": reached["eager"],
        "of_copy": reached["gflow"] / copied,
        "of_copy_eager": reached["eager"] / copied,
    }

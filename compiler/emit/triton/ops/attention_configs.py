"""Ways to run attention's kernels: blocks of positions, warps and stages, pruned by what a device has.

Registers decide: a block's sums and scores live in them. So ways are listed by kernel and by channels, from the
largest blocks that do not spill there down; what a bias or dropout adds takes the next smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.compiler.targets import Device, Target
from gflow.compiler.targets.devices import MMA_SHARED, TF32X3
from gflow.dialects.program import TritonConfig


class _Way(NamedTuple):
    """m positions of q, n of k at a time."""

    m: int
    n: int
    warps: int
    stages: int


_Table = Mapping[str, Mapping[int, tuple[_Way, ...]]]

#: tensor cores of sm_80: by kernel, by the most channels
_AMPERE: _Table = {
    "attention": {
        64: (_Way(128, 64, 8, 3), _Way(64, 64, 4, 3), _Way(64, 32, 4, 2), _Way(32, 32, 4, 2)),
        128: (_Way(128, 64, 8, 3), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2)),
        256: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(32, 32, 8, 1)),
    },
    "attention_query_grad": {
        64: (_Way(128, 64, 8, 2), _Way(64, 32, 4, 2), _Way(32, 32, 4, 2)),
        128: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 64, 4, 2), _Way(32, 32, 4, 2)),
        256: (_Way(32, 64, 8, 1), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
    "attention_key_grad": {
        64: (_Way(64, 128, 8, 2), _Way(64, 64, 8, 2), _Way(64, 32, 4, 2), _Way(32, 64, 4, 2)),
        128: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(32, 32, 8, 1)),
        256: (_Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
}  # fmt: skip

#: with products of operands in shared memory, which need fewer registers
_HOPPER: _Table = {
    "attention": {
        64: (_Way(128, 64, 8, 3), _Way(64, 64, 8, 2), _Way(128, 128, 8, 2), _Way(128, 64, 4, 3), _Way(64, 64, 4, 3)),
        128: (_Way(128, 128, 8, 2), _Way(64, 32, 8, 2), _Way(128, 64, 8, 3), _Way(64, 64, 8, 2)),
        256: (_Way(128, 64, 8, 2), _Way(32, 32, 8, 2), _Way(64, 32, 8, 2)),
    },
    "attention_query_grad": {
        64: (_Way(128, 64, 8, 2), _Way(64, 64, 8, 2), _Way(64, 64, 4, 2), _Way(64, 32, 4, 2)),
        128: (_Way(128, 64, 8, 2), _Way(64, 64, 8, 2), _Way(64, 32, 4, 2), _Way(32, 32, 4, 2)),
        256: (_Way(64, 32, 8, 2), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1)),
    },
    "attention_key_grad": {
        64: (_Way(64, 128, 8, 2), _Way(32, 64, 8, 2), _Way(32, 32, 4, 2)),
        128: (_Way(64, 64, 8, 2), _Way(32, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2)),
        256: (_Way(32, 64, 8, 2), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1)),
    },
}  # fmt: skip

#: float32 by three products of tf32, up to 128 channels
_TF32: _Table = {
    "attention": {
        64: (_Way(64, 32, 8, 2), _Way(32, 32, 8, 1), _Way(32, 32, 4, 2)),
        128: (_Way(32, 32, 8, 2), _Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
    "attention_query_grad": {
        64: (_Way(32, 32, 4, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
        128: (_Way(32, 32, 8, 2), _Way(16, 32, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_key_grad": {64: (_Way(32, 32, 4, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1))},
    "attention_bias_grad": {64: (_Way(16, 32, 4, 1), _Way(32, 32, 8, 1)), 128: (_Way(16, 32, 8, 1),)},
}  # fmt: skip

#: by multiply-adds of single elements
_SINGLE: _Table = {
    "attention": {
        64: (_Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 4, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 32, 8, 1), _Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_query_grad": {
        64: (_Way(32, 32, 8, 2), _Way(32, 32, 4, 1), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 8, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_key_grad": {
        64: (_Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 8, 1), _Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_bias_grad": {
        64: (_Way(16, 32, 4, 1), _Way(16, 16, 4, 1)), 128: (_Way(16, 16, 4, 1),), 256: (_Way(16, 16, 4, 1),),
    },
}  # fmt: skip

_BIAS_GRAD = {
    64: (_Way(32, 64, 8, 1), _Way(32, 32, 4, 1)),
    128: (_Way(32, 32, 8, 1), _Way(32, 32, 4, 1)),
    256: (_Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
}  # fmt: skip


def precision(stem: str, sizes: Mapping[str, int], target: Target) -> str:
    """How products of float32 are made where one of tf32 will not do: as three of them, which is as exact (and
    what PyTorch's kernel does), where that many registers are there."""
    channels = max(sizes["BLOCK_D"], sizes["BLOCK_DV"])
    return "tf32x3" if target.has(TF32X3) and max(64, channels) in _TF32[stem] else "ieee"


def configs(
    stem: str, dtype: str, sizes: Mapping[str, int], target: Target, products: str = "ieee"
) -> list[TritonConfig]:
    """Ways to run a kernel, the model's choice first.

    sizes: the kernel's constants. products: how those of float32 are made.
    """
    item = 4 if dtype == "f32" else 2
    channels = max(64, sizes["BLOCK_D"], sizes["BLOCK_DV"])
    table = _HOPPER if target.has(MMA_SHARED) else _AMPERE
    if item == 4:
        table = _SINGLE if products == "ieee" or channels not in _TF32[stem] else _TF32
    ways = table.get(stem, {}).get(channels, _BIAS_GRAD[channels])
    if stem != "attention_bias_grad" and (sizes["BIAS"] or sizes["DROPOUT"]):
        ways = ways[min(len(ways) - 1, 1) :]
    d = target.device
    fitting = [w for w in ways if _shared(stem, w, sizes, item, d) <= d.shared_memory] or [
        _Way(16, 16, 4, 1)
    ]
    return [TritonConfig({"BLOCK_M": w.m, "BLOCK_N": w.n}, w.warps, w.stages) for w in fitting]


def _shared(stem: str, way: _Way, sizes: Mapping[str, int], item: int, device: Device) -> int:
    """Bytes of shared memory: the blocks that stay, those under way, and weights between two products."""
    d, dv = sizes["BLOCK_D"], sizes["BLOCK_DV"]
    stays, passes = (way.n, way.m) if stem == "attention_key_grad" else (way.m, way.n)
    kept = stays * d if stem == "attention" else stays * (d + dv)
    weights = 0 if stem == "attention" else way.m * way.n
    stages = max(1, way.stages - device.register_stages)
    return item * (kept + stages * passes * (d + dv) + weights)

"""The table of devices. No number of a device stands anywhere else.

Sources, by field of the GPUs:

- `multiprocessors`, `bandwidth`, `vector`, `matmul`: the maker's data sheet, dense, with sums in float32.
  Those of the H100 and H200 are what such a chip sustains: 788 TFLOP/s of bfloat16 measured for 8192³ random
  numbers on an H200, where the data sheet says 989; tf32 is scaled alike.
- `shared_memory`, `registers`, `warps`, `blocks`: CUDA C++ Programming Guide, "Technical specifications per compute
  capability"; shared memory is what one block may have.
- `l2_bandwidth`: an estimate for each multiprocessor; it decides between tiles only.
- `launch`, `latency`: estimates for kernels of a CUDA graph.

The processor's figures are of two AVX-512 cores, measured by a copy and a product of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: `TensorMap` descriptors and bulk copies into shared memory
TMA = "tma"
#: products of matrices whose operands are read from shared memory (`wgmma`, `tcgen05`), not from registers (`mma.sync`)
MMA_SHARED = "mma-shared"
#: products of matrices of bfloat16 and of tf32; float16 alone without
MMA_BF16, MMA_TF32 = "mma-bf16", "mma-tf32"

_AMPERE = frozenset({MMA_BF16, MMA_TF32})
_HOPPER = frozenset({MMA_BF16, MMA_TF32, TMA, MMA_SHARED})
#: consumer Blackwell has bulk copies, and the products of Ampere
_CONSUMER = frozenset({MMA_BF16, MMA_TF32, TMA})


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: how options and reports call it.
        kind: `cpu` or `cuda`.
        arch: CUDA's compute capability without its dot, 90 for 9.0; 0 for a processor.
        bandwidth: bytes a second of memory.
        vector: floating-point operations a second outside of products of matrices.
        matmul: the same in products of matrices, by element type; `tf32` for products of float32 that may be
            rounded so. A type without an entry runs at `vector`.
        launch: seconds between two kernels.
        features: what its code may use, of the constants above.
        multiprocessors: streaming multiprocessors, or cores.
        shared_memory: bytes of shared memory that one block may have.
        registers: 32-bit registers of a multiprocessor.
        thread_registers: the most that one thread may have.
        warps, blocks: the most that a multiprocessor holds at once.
        l2_bandwidth: bytes a second that one multiprocessor loads from the second-level cache.
        latency: seconds until a tile's first loads have arrived.
    """

    name: str
    kind: str
    arch: int
    bandwidth: float
    vector: float
    matmul: Mapping[str, float]
    launch: float
    features: frozenset[str] = frozenset()
    multiprocessors: int = 0
    shared_memory: int = 0
    registers: int = 1 << 16
    thread_registers: int = 255
    warps: int = 0
    blocks: int = 0
    l2_bandwidth: float = 0.0
    latency: float = 1.5e-6


def _gpu(
    name: str,
    arch: int,
    features: frozenset[str],
    multiprocessors: int,
    bandwidth: float,
    teraflops: tuple[float, float, float, float],
    shared_memory: int,
    warps: int,
    blocks: int,
    l2_bandwidth: float,
) -> Device:
    """A row of the table. bandwidth, l2_bandwidth: GB/s. teraflops: of products of matrices of halves, of tf32 (0
    without), of float32 and of float64. shared_memory: KiB."""
    half, tf32, f32, f64 = (1e12 * rate for rate in teraflops)
    matmul = {"f16": half, "bf16": half, "f32": f32, "f64": f64, **({"tf32": tf32} if tf32 else {})}
    return Device(
        name,
        "cuda",
        arch,
        1e9 * bandwidth,
        f32,
        matmul,
        2e-6,
        features,
        multiprocessors,
        shared_memory << 10,
        warps=warps,
        blocks=blocks,
        l2_bandwidth=1e9 * l2_bandwidth,
    )


_DEVICES = (
    Device("cpu", "cpu", 0, 12e9, 40e9, {"f32": 120e9, "f64": 60e9}, 2e-6),
    #                                  SMs  GB/s  (half, tf32, float32, float64)  KiB warps blocks L2
    _gpu("t4", 75, frozenset(),         40,  320, (65, 0, 8.1, 0.25),              64, 32, 16, 25),
    _gpu("a100", 80, _AMPERE,          108, 1555, (312, 156, 19.5, 19.5),         163, 64, 32, 36),
    _gpu("a6000", 86, _AMPERE,          84,  768, (155, 77.4, 38.7, 0.60),         99, 48, 16, 30),
    _gpu("orin", 87, _AMPERE,           16,  205, (42.5, 21, 5.3, 0.08),          163, 48, 16, 30),
    _gpu("l40s", 89, _AMPERE,          142,  864, (362, 183, 91.6, 1.43),          99, 48, 24, 30),
    _gpu("h100", 90, _HOPPER,          132, 3350, (790, 395, 66.9, 66.9),         227, 64, 32, 45),
    _gpu("h200", 90, _HOPPER,          132, 4800, (790, 395, 66.9, 66.9),         227, 64, 32, 45),
    _gpu("b200", 100, _HOPPER,         148, 8000, (2250, 1100, 75, 37),           227, 64, 32, 45),
    _gpu("b300", 103, _HOPPER,         148, 8000, (2250, 1100, 75, 1.2),          227, 64, 32, 45),
    _gpu("thor", 110, _HOPPER,          20,  273, (258, 129, 8.1, 0.13),          227, 48, 24, 45),
    _gpu("rtx5090", 120, _CONSUMER,    170, 1792, (210, 105, 105, 1.64),           99, 48, 24, 30),
    _gpu("gb10", 121, _CONSUMER,        48,  273, (62, 31, 31, 0.48),              99, 48, 24, 30),
)  # fmt: skip

#: by name
DEVICES: dict[str, Device] = {d.name: d for d in _DEVICES}

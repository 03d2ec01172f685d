"""The table of devices. Every device parameter is in this file.

Sources of the fields for NVIDIA's GPUs:

- `multiprocessors`, `bandwidth`, `vector`, `matmul`: the vendor's data sheet: dense, accumulated in float32. The rates
  of the H100 and H200 are sustained ones: 788 TFLOP/s of bfloat16 were measured for an 8192³ product of random numbers
  on an H200, where the data sheet says 989. The rate of tf32 is scaled by the same ratio.
- `shared_memory`, `registers`, `warps`, `blocks`: CUDA C++ Programming Guide, "Technical specifications per compute
  capability". Shared memory is the most that one block may have.
- `l2_bandwidth`: of each multiprocessor. Only the choice of tiles uses it. The A100's is that of its white paper (5,120
  bytes a cycle), those of the H100 and H200 are what products of 128×64 tiles loaded on an H200, others are estimates.
- `launch`, `latency`: estimates for kernels of a CUDA graph.
- `access`, `line`: PTX ISA, vectors of `ld.global` (16 bytes), and CUDA C++ Best Practices Guide, coalesced access.
- `parameters`: drivers before CUDA 12.1 take 4,096 bytes; part of it is kept for the parameters that Triton adds.
- `recompute`: 20 operations (an H100's 67 TFLOP/s of float32 over 3.35 TB/s) for each of the four bytes that an
  element in half precision moves when it is stored and loaded once.
- `column`: 1,024 rows of a sector of 32 bytes are 16 values of 4 bytes for each of 512 threads, kept in registers.
  Counted, not measured on a device.
- `partial_sums`: an estimate: enough blocks to fill the device, and few enough that their results are small.
- `in_flight`, `ahead`, `row`: from Little's law and measurements (`docs/decisions.md`). Only the choice of tiles uses
  them.
- `descriptor`, `next_tile`: measured on an H200.

Sources of the fields for the MI300X:

- `multiprocessors` (compute units), `bandwidth`, `vector`, `matmul`: AMD Instinct MI300X data sheet, dense.
- `warp`, `shared_memory` (LDS), `registers` (4 SIMDs of 64 lanes of 512 VGPRs), `thread_registers` (256 of them
  accumulators): "AMD Instinct MI300" Instruction Set Architecture reference guide.
- `warps`, `blocks` (8 waves a SIMD; 16 workgroups of several waves): LLVM's AMDGPU backend, `AMDGPUBaseInfo.cpp`.
- `l2_bandwidth`: half of the 2 KB a cycle of 2.1 GHz that 38 compute units share, by the CDNA 3 white paper.
- `register_stages`: Triton's AMD backend, which loads the next tile into registers and stores it to LDS later.

The CPU's rates were measured on two AVX-512 cores, by a copy and by a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping

from gflow.dialects.records import record

#: `TensorMap` descriptors and bulk copies into shared memory
TMA = "tma"
#: matrix products whose operands are read from shared memory (`wgmma`, `tcgen05`), not from registers (`mma.sync`)
MMA_SHARED = "mma-shared"
#: matrix instructions for bfloat16 and for tf32; a device without these has them for float16 only
MMA_BF16, MMA_TF32 = "mma-bf16", "mma-tf32"
#: products of float64 matrices by `tl.dot`. For CDNA, Triton 3.7 fails with an assertion (`MFMA.cpp`, "Unsupported data
#: type"), so float64 products there multiply and sum elementwise
DOT_F64 = "dot-f64"
#: float32 products as three products of tf32 with about float32's accuracy: Triton's `input_precision="tf32x3"`
TF32X3 = "tf32x3"
#: attention by PyTorch's FlashAttention kernels; cuDNN's as well on devices with `TMA`
FLASH_ATTENTION = "flash-attention"
#: attention holds channels in two blocks that are smaller together than one (64 and 32 for 96), as registers suffice
TWO_CHANNEL_BLOCKS = "two-channel-blocks"

_TURING = frozenset({DOT_F64, TWO_CHANNEL_BLOCKS})
_AMPERE = _TURING | {MMA_BF16, MMA_TF32, TF32X3, FLASH_ATTENTION}
_HOPPER = _AMPERE | {TMA, MMA_SHARED}
#: consumer Blackwell has bulk copies, and Ampere's matrix instructions (`mma.sync`)
_CONSUMER = _AMPERE | {TMA}
#: CDNA 3 calls tf32 products xf32, and has matrix instructions for float32 as well
_CDNA3 = frozenset({MMA_BF16, MMA_TF32})


@record
class Device:
    """One device.

    Attributes:
        name: the device's name in options and reports.
        kind: `cpu`, `cuda` or `hip`; for a GPU, the name of Triton's backend.
        arch: CUDA's compute capability without its dot (90 for 9.0); AMD's name ("gfx942"); 0 for a CPU.
        bandwidth: memory bandwidth in bytes per second.
        vector: floating-point operations per second outside of matrix products.
        matmul: the same in matrix products, by element type; `tf32` for float32 products whose operands may be rounded
            to tf32. A type without an entry runs at `vector`.
        launch: seconds between two kernels.
        features: the features that generated code may use, of the constants above.
        multiprocessors: streaming multiprocessors, compute units, or cores.
        warp: threads of a warp (a wavefront); 0 for a CPU, which launches no kernels.
        shared_memory: bytes of shared memory that one block may have.
        register_stages: of the stages that a software-pipelined loop loads ahead, the number kept in registers; the
            other stages are in shared memory.
        registers: 32-bit registers of a multiprocessor.
        thread_registers: the most registers that one thread may have.
        warps, blocks: the most that are resident on a multiprocessor.
        l2_bandwidth: bytes per second that one multiprocessor loads from the second-level cache.
        latency: seconds until the first loads of a tile have arrived.
        access: the most bytes that one load or store instruction of a thread moves.
        line: bytes of a cache line.
        parameters: the most bytes of parameters of one launch.
        in_flight: bytes of loads that each thread should have in flight.
        ahead: the most bytes of shared memory for the loads that a loop issues ahead, so that several programs fit on
            a multiprocessor.
        row: the largest row in bytes that stays cached until it is read again.
        descriptor: seconds to create the tensor descriptors of a program.
        next_tile: seconds between two tiles of one persistent program.
        recompute: operations (an add is 1) up to which an element is recomputed instead of stored and loaded.
        column: the most rows of a column kernel that also computes what needs its columns again after their sums.
        partial_sums: blocks of rows per multiprocessor in sums over columns; the sums of a block are in registers.
    """

    name: str
    kind: str
    arch: int | str
    bandwidth: float
    vector: float
    matmul: Mapping[str, float]
    launch: float
    features: frozenset[str] = frozenset()
    multiprocessors: int = 0
    warp: int = 0
    shared_memory: int = 0
    register_stages: int = 0
    registers: int = 1 << 16
    thread_registers: int = 255
    warps: int = 0
    blocks: int = 0
    l2_bandwidth: float = 0.0
    latency: float = 1.5e-6
    access: int = 16
    line: int = 128
    parameters: int = 4_000
    in_flight: int = 128
    ahead: int = 64 << 10
    row: int = 128 << 10
    descriptor: float = 1e-6
    next_tile: float = 0.4e-6
    recompute: int = 80
    column: int = 1024
    partial_sums: int = 2


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
    """A row of the table.

    bandwidth, l2_bandwidth: GB/s. shared_memory: KiB. teraflops: rates of matrix products of half-precision types, of
    tf32 (0 without), of float32 and of float64.
    """
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
        32,
        shared_memory << 10,
        warps=warps,
        blocks=blocks,
        l2_bandwidth=1e9 * l2_bandwidth,
    )


_DEVICES = (
    Device("cpu", "cpu", 0, 12e9, 40e9, {"f32": 120e9, "f64": 60e9}, 2e-6),
    #                                  SMs  GB/s  (half, tf32, float32, float64)  KiB warps blocks L2
    _gpu("t4", 75, _TURING,             40,  320, (65, 0, 8.1, 0.25),              64, 32, 16, 25),
    _gpu("a100", 80, _AMPERE,          108, 1555, (312, 156, 19.5, 19.5),         163, 64, 32, 66),
    _gpu("a6000", 86, _AMPERE,          84,  768, (155, 77.4, 38.7, 0.60),         99, 48, 16, 30),
    _gpu("orin", 87, _AMPERE,           16,  205, (42.5, 21, 5.3, 0.08),          163, 48, 16, 30),
    _gpu("l40s", 89, _AMPERE,          142,  864, (362, 183, 91.6, 1.43),          99, 48, 24, 30),
    _gpu("h100", 90, _HOPPER,          132, 3350, (790, 395, 66.9, 66.9),         227, 64, 32, 95),
    _gpu("h200", 90, _HOPPER,          132, 4800, (790, 395, 66.9, 66.9),         227, 64, 32, 95),
    _gpu("b200", 100, _HOPPER,         148, 8000, (2250, 1100, 75, 37),           227, 64, 32, 45),
    _gpu("b300", 103, _HOPPER,         148, 8000, (2250, 1100, 75, 1.2),          227, 64, 32, 45),
    _gpu("thor", 110, _HOPPER,          20,  273, (258, 129, 8.1, 0.13),          227, 48, 24, 45),
    _gpu("rtx5090", 120, _CONSUMER,    170, 1792, (210, 105, 105, 1.64),           99, 48, 24, 30),
    _gpu("gb10", 121, _CONSUMER,        48,  273, (62, 31, 31, 0.48),              99, 48, 24, 30),
    Device("mi300x", "hip", "gfx942", 5300e9, 163.4e12,
           {"f16": 1307.4e12, "bf16": 1307.4e12, "tf32": 653.7e12, "f32": 163.4e12, "f64": 163.4e12}, 2e-6, _CDNA3,
           304, 64, 64 << 10, 1, 1 << 17, 512, warps=32, blocks=16, l2_bandwidth=56e9),
)  # fmt: skip

#: by name
DEVICES: dict[str, Device] = {d.name: d for d in _DEVICES}

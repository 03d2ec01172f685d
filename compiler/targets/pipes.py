"""Throughput and latency of a multiprocessor's pipelines, by architecture, for the model of loops in GPU machine code.

Sources of the fields:

- `fma`, `alu`, `f64`, `special`: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions": results
  per cycle of a multiprocessor. `fma`: float32 multiply-adds; `alu`: 32-bit integer adds, comparisons, minima and
  conversions to half precision; `f64`: float64 multiply-adds; `special`: reciprocals, square roots, exponentials.
- `tensor`: operations (two per multiply-add) per cycle of a multiprocessor in dense half-precision matrix products. It
  is the data sheet's rate, divided by multiprocessors and boost clock: 312e12 / 108 / 1.41 GHz for an A100,
  989e12 / 132 / 1.83 GHz for an H100.
- `warp_products`: the share of `tensor` that products by single warps (`mma.sync`) reach: 0.63 on an H100
  ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
- `cache`: bytes per cycle that the second-level cache delivers to all multiprocessors: 5,120 by the A100's white paper.
  The H100's white paper gives no figure; on an H200, products of 128×64 tiles loaded 99 GB/s on each multiprocessor,
  which is 7,400 bytes per cycle at 1.755 GHz.
- `shared`: bytes per cycle of shared memory: 32 banks of 4 bytes. Shuffles use the same path, 32 lanes per cycle.
- `latencies`: cycles from issue to result of instructions without a fixed latency, of loads from the second-level cache
  and from memory, and of a barrier of a block; rounded. From the article above and "Dissecting the Ampere GPU
  Architecture through Microbenchmarking" (2021).

The clock is not a field. It is `Device.matmul` over `tensor`, so it is the sustained clock of a device whose rates in
the table of devices were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gflow.dialects.records import record

from .devices import Device


@record
class Pipes:
    """A multiprocessor: `quarters` partitions, which issue one warp instruction per cycle each, and shared pipelines.

    Rates are per cycle and for the whole multiprocessor, except `cache`; see the module's docstring. latencies: cycles,
    by kind of instruction: "special", "shuffle", "shared", "cache", "memory", "barrier", "fence".
    """

    tensor: float
    fma: int
    alu: int
    f64: float
    cache: int = 5120
    special: int = 16
    shared: int = 128
    warp_products: float = 1.0
    quarters: int = 4
    latencies: Mapping[str, int] = field(
        default_factory=lambda: {
            "special": 20, "shuffle": 24, "shared": 30, "cache": 270, "memory": 600, "barrier": 20, "fence": 20,
        }
    )  # fmt: skip


#: by CUDA architecture; there is no model for the machine code of others
PIPES: dict[int, Pipes] = {
    80: Pipes(2048, fma=64, alu=64, f64=32),
    90: Pipes(4096, fma=128, alu=64, f64=64, cache=7400, warp_products=0.63),
}


def pipes_of(device: Device) -> Pipes | None:
    """The pipelines of a device's multiprocessors; None if the table has no entry for its architecture."""
    return PIPES.get(device.arch) if isinstance(device.arch, int) else None


def clock(device: Device, pipes: Pipes) -> float:
    """The clock in cycles per second, derived from the device's rate of half-precision matrix products."""
    return device.matmul["f16"] / (device.multiprocessors * pipes.tensor)

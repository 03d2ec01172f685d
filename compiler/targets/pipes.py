"""How fast a multiprocessor's pipes are, by architecture: what the model of loops of machine code counts with.

Sources, by field:

- `fma`, `alu`, `f64`, `special`: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", results a
  cycle of a multiprocessor: float32 multiply-adds; 32-bit integer adds, comparisons, minima and conversions to halves;
  float64 multiply-adds; reciprocals, square roots, exponentials.
- `tensor`: operations (two a multiply-add) a cycle of a multiprocessor in dense products of halves, the data sheet's
  rate
  over multiprocessors and boost clock: 312e12 / 108 / 1.41 GHz of an A100, 989e12 / 132 / 1.83 GHz of an H100.
- `warp_products`: the share of it that products by single warps (`mma.sync`) reach: 0.63 on an H100 ("Benchmarking and
  Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
- `cache`: bytes a cycle that the second-level cache gives all multiprocessors: 5,120 by the A100's white paper; the
  H100's
  gives no figure, and is taken to be the same.
- `shared`: bytes a cycle that shared memory gives: 32 banks of 4 bytes. Shuffles go the same way, 32 lanes a cycle.
- `latencies`: cycles from issue to result of what has no fixed latency, from the same article and "Dissecting the
  Ampere GPU Architecture through Microbenchmarking" (2021), rounded; a load from the second-level cache and from
  memory; a barrier of a block.

The clock is not a field: it follows from the table of devices (`Device.matmul` over `tensor`), so that it is the one
that a device sustains where that table has measured rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gflow.dialects.records import record

from .devices import Device


@record
class Pipes:
    """A multiprocessor: `quarters` parts that issue one instruction of a warp a cycle each, and what they share.

    Rates are of the whole multiprocessor, a cycle, but `cache`; see the module's text. latencies: cycles, by what is
    waited for: "special", "shuffle", "shared", "cache", "memory", "barrier", "fence".
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


#: by CUDA's architecture; machine code of others has no model
PIPES: dict[int, Pipes] = {
    80: Pipes(2048, fma=64, alu=64, f64=32),
    90: Pipes(4096, fma=128, alu=64, f64=64, warp_products=0.63),
}


def pipes_of(device: Device) -> Pipes | None:
    """The pipes of a device's multiprocessors; None where the table has none."""
    return PIPES.get(device.arch) if isinstance(device.arch, int) else None


def clock(device: Device, pipes: Pipes) -> float:
    """Cycles a second, as the device's rate of products implies."""
    return device.matmul["f16"] / (device.multiprocessors * pipes.tensor)

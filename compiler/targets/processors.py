"""The table of processors: what kernels of products are cut by. No number of a processor stands anywhere else.

A processor is known by the level of its instruction sets (System V ABI), which `GFLOW_CPU_ISA` may limit. Sources:

- `tiles`: rows, and vectors of 16 columns, of what is summed in registers: of 32 registers of 16 lanes 24 to 28 hold
  sums, of 16 registers of 8 lanes 12. On Zen 4 and Zen 5, 8 × 48 and 12 × 32 reached the most, and none spills.
- `near`: the second-level cache that each core of the level's servers has at least (Zen 4: 1 MiB, Zen 2: 512 KiB).
- `block`: of what threads share of the last-level cache, an estimate.
- `packing`: cycles of products that packing an element takes, measured on Zen 5.
- `library`: the share of the peak that MKL reaches. Intel's own processors have 0.9, Zen 4 0.65 to 0.85, Zen 5 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from gflow.dialects.program import processor


@dataclass(frozen=True)
class Processor:
    """Facts about the processors of a level.

    Attributes:
        name: the level.
        tiles: rows and vectors (of 16 float32) of register tiles, the fastest first.
        wide: the most vectors of a row of a tile.
        kc: how much of K one tile sums before it writes its sums, at most (BLIS).
        near: bytes of a core's second-level cache.
        block: bytes of packed columns that threads share.
        packing: the time that packing one element takes, in products of one.
        library: the share of the peak that the library reaches on large products.
    """

    name: str
    tiles: tuple[tuple[int, int], ...]
    wide: int
    kc: int
    near: int
    block: int
    packing: float
    library: float


#: by level, the highest first
PROCESSORS = {
    p.name: p
    for p in (
        Processor("x86-64-v4", ((8, 3), (12, 2), (6, 4)), 8, 2048, 1 << 20, 4 << 20, 24.0, 0.7),
        Processor("x86-64-v3", ((6, 1),), 1, 1024, 512 << 10, 4 << 20, 12.0, 0.85),
    )
}


def host_level() -> str:
    """The level of the machine at hand, limited by `GFLOW_CPU_ISA`; "" where the table has none.

    Raises:
        ValueError: the limit is none that this processor has.
    """
    usable = processor.usable()
    return next((name for name in PROCESSORS if processor.LEVELS[name] <= usable), "")

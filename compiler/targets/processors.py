"""The table of CPUs: tile sizes, cache sizes and rates for kernel selection. Every CPU parameter is in this file.

A CPU is identified by its level of instruction sets (System V ABI), which `GFLOW_CPU_ISA` may limit. Sources of the
fields of `Processor`:

- `tiles`: rows, and vectors of 16 columns, of the accumulators of a register tile. Of 32 registers of 16 lanes, 24 to
  28 hold accumulators; of 16 registers of 8 lanes, 12 do. On Zen 4 and Zen 5, 8 × 48 and 12 × 32 were the fastest; no
  tile of the table spills.
- `strips`: the same where each row of A is read through its own address, since the addresses take registers as well.
  Heights of 7 and 8 divide the image sizes of common networks.
- `issued`, `loaded`, `latency`: Zen 4 and Golden Cove start two multiply-adds and two loads in a cycle. A multiply-add
  takes four cycles. A vector of 16 lanes is two vectors of AVX2.
- `fetched`: Golden Cove moves 48 bytes at best, and less than half of that while lines are filled and evicted.
- `around`, `finishing`: the overhead of a tile in cycles, from callgrind's instruction counts.
- `near`: the smallest second-level cache of a core among the level's servers (Zen 4: 1 MiB, Zen 2: 512 KiB).
- `block`: an estimate of the part of the last-level cache that threads share.
- `packing`: the time of packing one element in multiply-adds, measured on Zen 5.
- `library`: the share of the peak that MKL reaches: 0.9 on Intel's CPUs, 0.65 to 0.85 on Zen 4, 0.4 on Zen 5.

`ANY` holds for CPUs of all levels. Sources of its fields:

- `start`: a parallel region of PyTorch's OpenMP, measured on two cores of Zen 4 while threads spin for work. It is
  several times that where they sleep.
- `operations`, `bytes`, `products`, `scored`, `copied`, `widened`, `weights`: rough rates of one thread with
  vectors of 256 bits. They only decide whether a step is large enough to run on several threads.
- `piece`, `gathered`, `large`, `row`, `scores`: parts of the second-level and last-level caches, from measurements in
  `docs/decisions.md`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gflow.dialects.program import processor
from gflow.dialects.records import record


@record
class Amx:
    """Parameters of float32 products by Intel AMX ("bf16x6", `compiler/kernel/blocks.py`), measured on Emerald Rapids.

    Attributes:
        kc: the largest block of K; longer blocks are read and written less often as parts of C, and leave the cache.
        near: bytes of packed rows of A that stay in the second-level cache.
        block: bytes of packed columns of B.
        packing: the time of packing one element, in such multiply-adds.
        faster: the throughput of large products over the peak of float32 multiply-adds.
    """

    kc: int
    near: int
    block: int
    packing: float
    faster: float


@record
class Halves:
    """Parameters of products of bfloat16 values in hardware ("bf16", `compiler/kernel/blocks.py`).

    Attributes:
        kc: the largest block of K.
        near: bytes of packed rows of A that stay in the second-level cache.
        block: bytes of packed columns of B.
    """

    kc: int
    near: int
    block: int


@record
class Processor:
    """Parameters of the CPUs of one level.

    Attributes:
        name: the level.
        tiles: sizes of register tiles as rows and vectors (of `Common.lanes` columns), the fastest first.
        strips: the same for kernels that read a packed B, and each row of A through its own address.
        issued, loaded: vector multiply-adds and vector loads that start in a cycle.
        latency: cycles of a multiply-add.
        fetched: bytes that the second-level cache delivers in a cycle.
        around: overhead of a tile in cycles. finishing: overhead for each vector of a tile in cycles.
        wide: the most vectors in a row of a tile.
        kc: the largest block of K that a tile sums before it stores its accumulators (BLIS's k_c).
        near: bytes of a core's second-level cache.
        block: bytes of packed columns of B that threads share.
        packing: the time of packing one element, in multiply-adds.
        library: the share of the peak, from 0 to 1, that the BLAS reaches on large products.
        amx: parameters of float32 products by AMX; None: no such products.
        halves: parameters of products of bfloat16 values, by AMX or AVX-512; None: float32 multiply-adds compute them.
    """

    name: str
    tiles: tuple[tuple[int, int], ...]
    strips: tuple[tuple[int, int], ...]
    issued: float
    loaded: float
    latency: float
    fetched: float
    around: float
    finishing: float
    wide: int
    kc: int
    near: int
    block: int
    packing: float
    library: float
    amx: Amx | None = None
    halves: Halves | None = None


@record
class Common:
    """Parameters that hold for CPUs of all levels. Rates are those of one thread.

    Attributes:
        lanes: float32 elements of a vector in generated code; LLVM splits it where registers are shorter.
        start: nanoseconds until all threads of a parallel region run.
        operations: elementwise operations per nanosecond.
        bytes: bytes read and written per nanosecond.
        products: float32 multiply-adds per nanosecond.
        scored: multiply-adds of attention per nanosecond, its exponentials included.
        copied: bytes copied per nanosecond.
        widened: multiply-adds per nanosecond of products with quantized weights.
        weights: bytes of quantized weights read per nanosecond.
        line: bytes of a cache line.
        ahead: how many bytes ahead quantized weights are prefetched: two pages, since the hardware prefetcher stops at
            the end of a page.
        piece: bytes of an intermediate result that is consumed while it is cached.
        gathered: bytes of patches, or of half-precision elements converted to float32, that are produced at a time.
        large: bytes from which a result is taken not to fit a cache.
        row: the longest row, in elements, that stays cached between passes over it.
        scores: keys in a block of attention; their scores stay in the first-level cache.
    """

    lanes: int = 16
    start: float = 6_000
    operations: float = 16
    bytes: float = 16
    products: float = 64
    scored: float = 22
    copied: float = 12
    widened: float = 24
    weights: float = 12
    line: int = 64
    ahead: int = 8 << 10
    piece: int = 2 << 20
    gathered: int = 4 << 20
    large: int = 8 << 20
    row: int = 1 << 15
    scores: int = 256


ANY = Common()


@record
class Measured:
    """Results of timed comparisons of gflow's kernels with PyTorch's libraries on one CPU.

    `compiler/driver/races.py` does not repeat these comparisons on such a CPU.

    Attributes:
        vendor, family, models: the CPU's identity (CPUID); an empty `models` means all models of the family.
        level: the level of instruction sets that the kernels used.
        threads: the largest number of threads that was measured.
        products: the least and the largest ratio of measured to modelled speedup of products over the BLAS.
        amx: the same of products by AMX.
        few_rows: the contiguous dimensions of B ("k", or "lanes": columns) with which products of up to 16 rows were
            faster than the BLAS.
        attention: the kinds of attention (`AttentionContest.kind`) that took at most 1.1 times ATen's time in every
            case.
    """

    vendor: str
    family: int
    models: frozenset[int]
    level: str
    threads: int
    products: tuple[float, float]
    few_rows: frozenset[str]
    attention: frozenset[str]
    amx: tuple[float, float] = (0.0, math.inf)


#: Emerald Rapids: the products of the benchmarks that the model takes to be faster (40 on one thread, 6 on two), and
#: attention of 26 shapes on one thread. Zen 5: `docs/decisions.md`.
_ATTENTION = frozenset(
    c + b + way
    for c in ("", "causal ")
    for b in ("", "biased ")
    for way in ("forward", "gradients")
)
_MEASURED = (
    *(
        Measured(
            "GenuineIntel", 6, frozenset({207}), level, 2, (0.5, 0.8), frozenset({"k"}),
            frozenset({"forward", "causal forward", "causal gradients"}), (0.45, 0.95),
        )
        for level in ("x86-64-v4", "x86-64-v4+amx")
    ),
    *(
        Measured(
            "AuthenticAMD", 26, frozenset(), level, 2, (1.5, 2.5), frozenset({"k", "lanes"}), _ATTENTION,
        )
        for level in ("x86-64-v4", "x86-64-v4+bf16")
    ),
)  # fmt: skip


def measured_here(level: str, threads: int) -> Measured | None:
    """The row of the machine at hand for kernels of a level; None if it was not measured with as many threads."""
    vendor, family, model = processor.identity()
    for row in _MEASURED:
        same = (row.vendor, row.family, row.level) == (vendor, family, level)
        if same and threads <= row.threads and (not row.models or model in row.models):
            return row
    return None


_STRIPS = ((8, 3), (7, 3), (6, 4), (8, 2), (7, 2), (12, 2), (8, 1), (4, 3), (4, 4), (1, 4), (2, 4))

_V4 = Processor(
    "x86-64-v4", ((8, 3), (12, 2), (6, 4)), _STRIPS, 2, 2, 4, 20, 60, 4, 8, 2048, 1 << 20, 4 << 20, 24.0, 0.7,
)  # fmt: skip
_AMX = Amx(kc=384, near=300 << 10, block=1200 << 10, packing=63.0, faster=1.9)
_TILES = Halves(kc=1152, near=300 << 10, block=1200 << 10)
_DOTS = Halves(kc=768, near=300 << 10, block=1200 << 10)

#: by level, the highest first
PROCESSORS = {
    p.name: p
    for p in (
        replace(_V4, name="x86-64-v4+amx", amx=_AMX, halves=_TILES),
        replace(_V4, name="x86-64-v4+bf16", halves=_DOTS),
        _V4,
        Processor(
            "x86-64-v3", ((6, 1),), ((6, 1), (4, 1), (1, 1)), 1, 1, 4, 20, 60, 8, 1, 1024, 512 << 10, 4 << 20, 12.0,
            0.85,
        ),
    )
}  # fmt: skip


def host_level() -> str:
    """The level of the machine at hand, limited by `GFLOW_CPU_ISA`; "" where the table has none.

    Raises:
        ValueError: the limit is none that this processor has.
    """
    usable = processor.usable()
    return next((name for name in PROCESSORS if processor.LEVELS[name] <= usable), "")

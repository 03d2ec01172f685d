"""The table of processors: what their kernels are cut by. No number of a processor stands anywhere else.

A processor is known by the level of its instruction sets (System V ABI), which `GFLOW_CPU_ISA` may limit. Sources:

- `tiles`: rows, and vectors of 16 columns, of what is summed in registers: of 32 registers of 16 lanes 24 to 28 hold
  sums, of 16 registers of 8 lanes 12. On Zen 4 and Zen 5, 8 × 48 and 12 × 32 reached the most, and none spills.
- `strips`: the same where rows are read by their addresses, which take registers, too. Heights of 7 and 8 divide
  the squares of networks for images.
- `issued`, `loaded`, `latency`: Zen 4 and Golden Cove start two multiply-adds and two loads a cycle, which take four
  cycles; vectors of 16 lanes are two of AVX2.
- `fetched`: Golden Cove moves 48 bytes at best, and less than half while lines come in and go out.
- `around`, `finishing`: cycles that a tile takes besides, of callgrind's instruction counts.
- `near`: the second-level cache that each core of the level's servers has at least (Zen 4: 1 MiB, Zen 2: 512 KiB).
- `block`: of what threads share of the last-level cache, an estimate.
- `packing`: cycles of products that packing an element takes, measured on Zen 5.
- `library`: the share of the peak that MKL reaches. Intel's own processors have 0.9, Zen 4 0.65 to 0.85, Zen 5 0.4.

`ANY` stands for processors of all levels. Sources:

- `start`: a parallel region of PyTorch's OpenMP, measured on two cores of Zen 4 while threads spin for work. It is
  several times that where they sleep.
- `operations`, `bytes`, `products`, `scored`, `copied`, `widened`, `weights`: rough rates of one thread with
  vectors of 256 bits. They decide only whether a step is worth starting threads for.
- `piece`, `gathered`, `large`, `row`, `scores`: parts of the second-level and last-level caches, from measurements in
  `docs/decisions.md`.
"""

from __future__ import annotations

from gflow.dialects.program import processor
from gflow.dialects.records import record


@record
class Processor:
    """Facts about the processors of a level.

    Attributes:
        name: the level.
        tiles: rows and vectors (of `Common.lanes`) of register tiles, the fastest first.
        strips: rows and vectors of register tiles whose B was packed beforehand, and whose rows are read by addresses.
        issued, loaded: multiply-adds and loads of vectors that begin in a cycle; latency: cycles of a multiply-add.
        fetched: bytes that come from the second-level cache in a cycle.
        around, finishing: cycles of a tile besides its sums, and for each of its vectors.
        wide: the most vectors of a row of a tile.
        kc: how much of K one tile sums before it writes its sums, at most (BLIS).
        near: bytes of a core's second-level cache.
        block: bytes of packed columns that threads share.
        packing: the time that packing one element takes, in products of one.
        library: the share of the peak that the library reaches on large products.
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


@record
class Common:
    """Facts that stand for processors of all levels.

    Attributes:
        lanes: float32 elements of a vector in generated code; LLVM makes several instructions of one where registers
            are shorter.
        start: nanoseconds until all threads run.
        operations: elementwise operations a nanosecond on one thread.
        bytes: bytes a nanosecond that one thread reads and writes.
        products: float32 multiply-adds a nanosecond on one thread.
        scored: multiply-adds a nanosecond of attention, with its exponentials.
        copied: bytes a nanosecond that are copied on one thread.
        widened, weights: multiply-adds a nanosecond of products with quantized weights, and bytes of these that are
            read.
        line, ahead: bytes of a cache line, and how far ahead of what is multiplied the lines of such weights are asked
            for: two pages, since a processor fetches a single stream ahead to the end of a page.
        piece: bytes of a result that is made, and used while it is cached.
        gathered: bytes of patches, or of widened halves, that are made at a time.
        large: bytes of a result that does not fit a cache.
        row: elements of a row that stay cached between passes over it.
        scores: keys of a block of attention, whose scores stay in the first-level cache.
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
    """What comparisons of gflow's kernels with PyTorch's libraries found on a processor (`compiler/driver/races.py`).
    They are not repeated there.

    Attributes:
        vendor, family, models: the processor's identity (CPUID); of no models, all of the family.
        level: the instruction sets that the kernels used. threads: up to how many were measured.
        products: the least and the largest ratio of measured to modelled speedup of products over the BLAS.
        few_rows: the contiguous dimensions of B ("k", or "lanes": columns) with which products of up to 16 rows were
            faster than the BLAS.
        attention: whether attention was faster than ATen's in every case.
    """

    vendor: str
    family: int
    models: frozenset[int]
    level: str
    threads: int
    products: tuple[float, float]
    few_rows: frozenset[str]
    attention: bool


#: Emerald Rapids: the products of the benchmarks that the model takes to be faster (40 on one thread, 6 on two). Zen 5:
#: `docs/decisions.md`.
_MEASURED = (
    Measured(
        "GenuineIntel", 6, frozenset({207}), "x86-64-v4", 2, (0.5, 0.8), frozenset({"k"}), False
    ),
    Measured(
        "AuthenticAMD", 26, frozenset(), "x86-64-v4", 2, (1.5, 2.5), frozenset({"k", "lanes"}), True
    ),
)


def measured_here(level: str, threads: int) -> Measured | None:
    """The row of the machine at hand for kernels of a level; None if it was not measured with as many threads."""
    vendor, family, model = processor.identity()
    for row in _MEASURED:
        same = (row.vendor, row.family, row.level) == (vendor, family, level)
        if same and threads <= row.threads and (not row.models or model in row.models):
            return row
    return None


_STRIPS = ((8, 3), (7, 3), (6, 4), (8, 2), (7, 2), (12, 2), (8, 1), (4, 3), (4, 4), (1, 4), (2, 4))

#: by level, the highest first
PROCESSORS = {
    p.name: p
    for p in (
        Processor(
            "x86-64-v4", ((8, 3), (12, 2), (6, 4)), _STRIPS, 2, 2, 4, 20, 60, 4, 8, 2048, 1 << 20, 4 << 20, 24.0, 0.7,
        ),
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

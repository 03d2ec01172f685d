"""Which tiles a contraction is computed in: candidates, what they need of a device, how long they take.

The model is a roofline of one multiprocessor: a tile takes as long as the slower of its arithmetic and its
loads from the second-level cache, all tiles together not less than the tensors take from memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import log2

from gflow.dialects.program import TritonConfig

from .grid import cdiv


@dataclass(frozen=True)
class Device:
    """A multiprocessor and how many there are.

    shared: bytes of shared memory that a block may have. half, single, double: operations a second of one
    multiprocessor, by tensor cores for halves. cache: bytes a second that one loads from the second-level cache.
    memory: bytes a second of all. launch: seconds between two kernels. latency: of a tile's first loads and stores.
    """

    count: int
    shared: int
    half: float
    single: float
    double: float
    cache: float
    memory: float
    launch: float = 2e-6
    latency: float = 1.5e-6


_VOLTA = Device(40, 64 << 10, 1.6e12, 0.2e12, 0.01e12, 25e9, 0.32e12)
_AMPERE = Device(108, 163 << 10, 2.9e12, 0.18e12, 0.18e12, 36e9, 1.55e12)
_GAMING = Device(84, 99 << 10, 1.7e12, 0.4e12, 0.006e12, 30e9, 0.9e12)
_HOPPER = Device(132, 227 << 10, 7.0e12, 0.5e12, 0.5e12, 45e9, 3.35e12)


def device(arch: int) -> Device:
    if arch < 80:
        return _VOLTA
    if arch in (90, 100, 103):
        return _HOPPER
    return _AMPERE if arch == 80 else _GAMING


@dataclass(frozen=True)
class Tile:
    """m, n: of the result. k: terms at a time."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def config(self, **more: int) -> TritonConfig:
        constants = {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, **more}
        return TritonConfig(constants, self.warps, self.stages)


#: by tensor cores
_CORES = (
    Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(128, 32, 64, 4, 4), Tile(64, 32, 64, 4, 4),
    Tile(32, 64, 64, 4, 4), Tile(32, 32, 64, 4, 4), Tile(16, 128, 64, 4, 4), Tile(16, 64, 128, 4, 4),
    Tile(128, 16, 64, 4, 4), Tile(64, 16, 128, 4, 4),
)  # fmt: skip
#: by multiply-adds of single elements
_SINGLE = (
    Tile(128, 128, 16, 8, 3), Tile(128, 64, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(64, 32, 32, 4, 3),
    Tile(32, 64, 32, 4, 3),
    Tile(32, 32, 32, 4, 3), Tile(16, 64, 32, 4, 3), Tile(64, 16, 32, 4, 3), Tile(16, 16, 32, 2, 3),
)  # fmt: skip
#: products added up one by one: integers, and products with one row or one column
_SUMS = (Tile(16, 16, 16, 4, 2), Tile(4, 16, 64, 4, 2), Tile(16, 4, 64, 4, 2))
_ROW = (Tile(1, 16, 256, 4, 2), Tile(1, 64, 64, 4, 2), Tile(1, 4, 1024, 4, 2))
_COLUMN = (Tile(16, 1, 256, 4, 2), Tile(64, 1, 64, 4, 2), Tile(4, 1, 1024, 4, 2))

#: terms that the last split of a product has, at least
_SPLIT_TERMS = 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Problem:
    """A product: sizes, how many of them, bytes of an element of the operands.

    gather: the operands are loaded element by element. heavy: what follows needs many registers.
    run: terms that a block may span, if not all: a convolution's channels.
    kind: "cores", "single", "double" or "sums": what computes it. bytes: of all tensors that are read and written;
    0 if nothing but the product counts.
    """

    m: int
    n: int
    k: int
    batch: int
    item: int
    kind: str
    bytes: int = 0
    run: int = 0
    gather: bool = False
    heavy: bool = False

    @property
    def span(self) -> int:
        return self.run or self.k


def candidates(p: Problem, arch: int) -> list[Tile]:
    """Tiles that the device can hold, none much larger than the product."""
    if p.kind == "sums":
        found = _ROW if p.m == 1 else _COLUMN if p.n == 1 else _SUMS
        return list(found)
    d = device(arch)
    whole = _CORES if p.kind == "cores" else _SINGLE
    fitting = []
    for t in whole:
        k = t.k
        if p.kind == "cores":
            k = 32 if p.span <= 32 else max(t.k * 2 // p.item, 16)
        if p.gather:
            k = min(k, 32)
            t = replace(t, warps=8 if t.m * t.n >= 4096 else t.warps, stages=2)
        heavy = p.heavy or arch < 90  # there the operands are in registers, too
        if t.m * t.n > (_GATHERED if p.gather else _HEAVY if heavy else t.m * t.n):
            continue
        t = Tile(t.m, t.n, k, t.warps, t.stages)
        if _shared(t, p.item) > d.shared:
            t = Tile(t.m, t.n, t.k, t.warps, 2)
        too_large = (t.m >= 2 * p.m and t.m > 16) or (t.n >= 2 * p.n and t.n > 16)
        if _shared(t, p.item) <= d.shared and not too_large and t not in fitting:
            fitting.append(t)
    return fitting or [Tile(16, 16, 32, 4, 2)]


#: elements of the largest tile whose operands are loaded one by one, and of one with much to do afterwards
_GATHERED, _HEAVY = 128 * 64, 128 * 128


def _shared(t: Tile, item: int) -> int:
    return t.stages * (t.m + t.n) * t.k * item


def seconds(p: Problem, t: Tile, splits: int, arch: int) -> float:
    """How long a product takes in such tiles, each split so often."""
    d = device(arch)
    steps = p.k // p.span * cdiv(p.span, t.k)
    terms = cdiv(steps, splits) * t.k
    tiles = cdiv(p.m, t.m) * cdiv(p.n, t.n) * p.batch * splits
    rate = {"cores": d.half * 2 / p.item, "single": d.single, "double": d.double, "sums": d.single}
    # a smaller tile has less to do while it waits
    effect = min(1.0, 0.5 + t.m * t.n / 32768)
    arithmetic = 2 * t.m * t.n * terms / (rate[p.kind] * effect)
    loads = (t.m + t.n) * terms * p.item / d.cache
    at_once = max(1, min(d.shared // max(_shared(t, p.item), 1), 48 // t.warps, 4))
    each = cdiv(tiles, d.count)
    took = each * max(arithmetic, loads) + cdiv(each, at_once) * d.latency
    took = max(took, p.bytes / d.memory)
    if splits > 1:
        took += d.launch + 8 * p.m * p.n * p.batch * splits / d.memory
    return took


def best_splits(p: Problem, arch: int) -> int:
    """How often to split the terms so that the device is busy."""
    most = max(1, p.k // _SPLIT_TERMS)
    tiles = candidates(p, arch)
    options = [s for s in _SPLITS if s <= most]
    return min(options, key=lambda s: (min(seconds(p, t, s, arch) for t in tiles), s))


def ordered(p: Problem, splits: int, arch: int, used: Collection[Tile] = ()) -> list[Tile]:
    """The model's choice, then others worth a try. What follows the choice depends on it alone, so that products of
    other sizes share the kernel.

    used: tiles that this kernel is compiled for anyway; one of them is chosen if it takes hardly longer.
    """
    found = [(seconds(p, t, splits, arch), n, t) for n, t in enumerate(candidates(p, arch))]
    best = min(found)
    again = [f for f in found if f[2] in used and f[0] <= _HARDLY * best[0]]
    choice = min(again)[2] if again else best[2]
    return [choice, *_neighbours(choice, p, arch)]


#: how much longer a tile may take to be used again
_HARDLY = 1.25
#: tiles to try beside the choice
_TRIED = 5


def _neighbours(choice: Tile, p: Problem, arch: int) -> list[Tile]:
    """The tiles most like the choice."""
    large = replace(p, m=1 << 20, n=1 << 20)
    others = [t for t in candidates(large if p.kind != "sums" else p, arch) if t != choice]

    def unlike(t: Tile) -> float:
        return abs(log2(t.m / choice.m)) + abs(log2(t.n / choice.n)) + (t.k != choice.k) / 2

    return sorted(others, key=unlike)[:_TRIED]


def whole_terms(p: Problem, tile: Tile) -> int:
    """The tile's block of terms if they divide into such; else 1."""
    return tile.k if p.span % tile.k == 0 else 1

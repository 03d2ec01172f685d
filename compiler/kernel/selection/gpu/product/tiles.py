"""Which tiles a contraction is computed in: candidates, what they need of a device, how long they take.

The model is a roofline of one multiprocessor: a tile takes as long as the slower of its arithmetic and its
loads from the second-level cache, all tiles together not less than the tensors take from memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil, lcm, log2

from gflow.compiler.targets import Device, Target
from gflow.compiler.targets.devices import MMA_SHARED
from gflow.dialects.program import TritonConfig
from gflow.dialects.records import record

from ....sizes import cdiv
from ...choice import WARP


@record
class Tile:
    """m, n: of the result. k: of K, at a time.

    parts: in how many pieces what follows is computed. descriptors: by how many programs, each with a share of all
    tiles (or with one, where they aren't walked), whose loads go by descriptors; 0 by pointers, one tile each.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    parts: int = 1
    descriptors: int = 0

    def config(self, **more: int) -> TritonConfig:
        """The tile as a configuration of a Triton kernel. more: constants besides the block sizes."""
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

#: how much of K each part of a split product has, at least
_LEAST_SPLIT = 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@record
class Problem:
    """A product: sizes, how many of them, bytes of an element of the operands.

    gather: the operands are loaded element by element. heavy: finding them, or what follows, takes much text.
    run: how much of K a block may span, if not all: a convolution's channels.
    kind: "cores", "single", "double" or "sums": what computes it. bytes: of all tensors that are read and written;
    0 if nothing but the product counts. live: words that what follows has in registers for each of its elements.
    stored: bytes of an element of the result. descriptors: as of a contraction's frame. ragged: other loads than by
    these go element by element. rows: what a tile's rows are a multiple of, as what follows sums so many.
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
    live: float = 0.0
    stored: int = 4
    descriptors: str = ""
    ragged: bool = False
    rows: int = 1

    @property
    def span(self) -> int:
        """How much of K a block may span."""
        return self.run or self.k


def candidates(p: Problem, target: Target) -> list[Tile]:
    """Tiles that the device can hold, none much larger than the product."""
    if p.kind == "sums":
        found = _ROW if p.m == 1 else _COLUMN if p.n == 1 else _SUMS
        return list(found)
    d = target.device
    fitting = []
    for t in _CORES if p.kind == "cores" else _SINGLE:
        k = t.k
        if p.kind == "cores":
            k = 32 if p.span <= 32 else max(t.k * 2 // p.item, 16)
        if p.gather:
            k = min(k, 32)
            t = replace(t, warps=8 if t.m * t.n >= 4096 else t.warps, stages=2)
        heavy = p.heavy or not target.has(MMA_SHARED)  # there the operands are in registers, too
        if t.m * t.n > (_GATHERED if p.gather else _HEAVY if heavy else t.m * t.n):
            continue
        t = replace(t, k=k)
        t = replace(t, parts=_parts(p, t, target))
        if _shared(t, p.item, d) > d.shared_memory:
            t = replace(t, stages=2)
        fits = (
            _shared(t, p.item, d) <= d.shared_memory
            and registers(p, t, target) <= target.device.thread_registers
        )
        too_large = (t.m >= 2 * p.m and t.m > 16) or (t.n >= 2 * p.n and t.n > 16)
        if fits and not too_large and t not in fitting and t.m % p.rows == 0:
            fitting.append(t)
    return fitting or [Tile(lcm(16, p.rows), 16, 32, 4, 2)]


def _every(p: Problem, target: Target) -> list[Tile]:
    """Candidates, with their loads by pointers and by descriptors."""
    plain = candidates(p, target)
    return [*plain, *(t for t in (_by_descriptors(p, t, target) for t in plain) if t is not None)]


#: elements of the largest tile whose operands are loaded one by one, and of one with much text for each
_GATHERED, _HEAVY = 128 * 64, 128 * 128
#: registers that a thread needs whatever the tile
_OTHERS = 40
#: further ones: for operands, where they aren't read from shared memory; for a walk over tiles
_FRAGMENTS, _WALK = 16, 24
#: pieces of a tile, and columns of the least
_PARTS, _NARROW = (1, 2, 4, 8), 16


def registers(p: Problem, t: Tile, target: Target) -> float:
    """Those of a thread: its part of the sum, and what follows on one piece of it."""
    each = t.m * t.n / (WARP * t.warps) * (2 if p.kind == "double" else 1)
    others = (
        _OTHERS
        + (_FRAGMENTS if not target.has(MMA_SHARED) else 0)
        + (_WALK if t.descriptors else 0)
    )
    return each + p.live * each / t.parts + others


def _parts(p: Problem, t: Tile, target: Target) -> int:
    """The fewest pieces with which what follows fits into registers."""
    options = _pieces(t)
    tried = (
        n
        for n in options
        if registers(p, replace(t, parts=n), target) <= target.device.thread_registers
    )
    return next(tried, options[-1])


def _pieces(t: Tile) -> list[int]:
    return [n for n in _PARTS if t.n // n >= _NARROW] or [1]


def _by_descriptors(p: Problem, t: Tile, target: Target) -> Tile | None:
    """The tile with its loads by descriptors, if the problem has such and it is worth it."""
    if not p.descriptors or t.m < 64 or t.n < 32:
        return None
    if p.descriptors == "DESCRIPTORS":
        return replace(t, descriptors=1)
    d, t = target.device, replace(t, descriptors=1)
    least = _parts(p, t, target)
    for stages in range(t.stages, 1, -1):
        for parts in (n for n in _pieces(t) if n >= least):
            # the next tile's loads are under way while a piece goes through shared memory to be stored
            shared = _shared(t, p.item, d) * stages // t.stages + t.m * t.n * p.stored // parts
            if shared + _DESCRIPTOR_BYTES <= d.shared_memory:
                at_once = min(
                    d.shared_memory // shared,
                    d.registers // int(WARP * t.warps * registers(p, t, target)),
                )
                programs = d.multiprocessors * max(1, at_once)
                return replace(t, stages=stages, parts=parts, descriptors=programs)
    return None


#: shared memory that descriptors and barriers take
_DESCRIPTOR_BYTES = 1024


def _shared(t: Tile, item: int, d: Device) -> int:
    """Bytes of shared memory."""
    return max(1, t.stages - d.register_stages) * (t.m + t.n) * t.k * item


def _rates(d: Device, item: int) -> dict[str, float]:
    """Operations a second of one multiprocessor, by what computes the product."""
    halves = d.matmul["f16"] if item == 2 else d.matmul.get("tf32", d.matmul["f32"])
    rates = {
        "cores": halves,
        "single": d.matmul["f32"],
        "double": d.matmul["f64"],
        "sums": d.vector,
    }
    return {kind: rate / d.multiprocessors for kind, rate in rates.items()}


def seconds(p: Problem, t: Tile, splits: int, target: Target) -> float:
    """How long a product takes in such tiles, each split so often."""
    d = target.device
    tiles = cdiv(p.m, t.m) * cdiv(p.n, t.n) * p.batch * splits
    each = cdiv(tiles, d.multiprocessors)
    took = each * _seconds_of_tile(p, t, splits, target)
    if t.descriptors and p.descriptors == "PERSISTENT" and splits == 1:
        took += d.latency + d.descriptor + each * d.next_tile
    else:
        took += _begins(p, t, each, d)
    took = max(took, p.bytes / d.bandwidth)
    if splits > 1:
        took += d.launch + 8 * p.m * p.n * p.batch * splits / d.bandwidth
    return took


def _seconds_of_tile(p: Problem, t: Tile, splits: int, target: Target) -> float:
    """How long a multiprocessor takes for a part of K of one tile."""
    steps = p.k // p.span * cdiv(p.span, t.k)
    k = cdiv(steps, splits) * t.k
    # a smaller tile has less to do while it waits
    effect = min(1.0, 0.5 + t.m * t.n / 32768)
    arithmetic = 2 * t.m * t.n * k / (_rates(target.device, p.item)[p.kind] * effect)
    loads = (t.m + t.n) * k * p.item / target.device.l2_bandwidth
    if p.ragged and not t.descriptors:
        loads *= _RAGGED
    return max(arithmetic, loads)


def _begins(p: Problem, t: Tile, each: int, d: Device) -> float:
    """What a multiprocessor waits for the first loads of programs of a tile, `each` of them, one after the other."""
    fits = (
        d.shared_memory // max(_shared(t, p.item, d), 1),
        d.warps * d.warp // (WARP * t.warps),
        4,
    )
    return cdiv(each, max(1, min(fits))) * (d.latency + (d.descriptor if t.descriptors else 0.0))


def together(products: Sequence[Problem], target: Target) -> tuple[float, Tile] | None:
    """How long products take in one launch, each program with a whole tile of one of them, and in which tiles; None if
    no tile suits all of them."""
    suits = [_every(p, target) for p in products]
    common = [t for t in suits[0] if all(t in some for some in suits)]
    found = [(_seconds_together(products, t, target), n, t) for n, t in enumerate(common)]
    if not found:
        return None
    least, _, tile = min(found)
    return least, tile


def _seconds_together(products: Sequence[Problem], t: Tile, target: Target) -> float:
    d = target.device
    own = [_seconds_of_tile(p, t, 1, target) for p in products]
    work = sum(s * cdiv(p.m, t.m) * cdiv(p.n, t.n) * p.batch for s, p in zip(own, products))
    # tiles that take less fill the last round
    each = ceil(work / (max(own) * d.multiprocessors) - 1e-6)
    took = each * max(own) + _begins(products[0], t, each, d)
    return max(took, sum(p.bytes for p in products) / d.bandwidth)


#: how much longer loads of single elements take
_RAGGED = 4


def fastest(p: Problem, target: Target) -> float:
    """Seconds with the model's choices."""
    splits = best_splits(p, target)
    return seconds(p, fastest_tile(p, splits, target), splits, target)


def best_splits(p: Problem, target: Target) -> int:
    """How often to split K so that the device is busy."""
    most = max(1, p.k // _LEAST_SPLIT)
    tiles = _every(p, target)
    options = [s for s in _SPLITS if s <= most]
    return min(options, key=lambda s: (min(seconds(p, t, s, target) for t in tiles), s))


def fastest_tile(p: Problem, splits: int, target: Target, used: Collection[Tile] = ()) -> Tile:
    """The model's choice.

    used: tiles that this kernel is compiled for anyway; one of them is chosen if it takes hardly longer.
    """
    found = [(seconds(p, t, splits, target), n, t) for n, t in enumerate(_every(p, target))]
    best = min(found)
    again = [f for f in found if f[2] in used and f[0] <= _HARDLY * best[0]]
    return min(again)[2] if again else best[2]


#: how much longer a tile may take to be used again
_HARDLY = 1.25
#: tiles to try beside the choice
_TRIED = 7


def neighbours(choice: Tile, p: Problem, target: Target) -> list[Tile]:
    """Tiles worth a try beside a choice: the choice with its loads made in the other way, then the tiles most like it,
    in either way. They depend on the choice alone, so that products of other sizes share the kernel."""
    large = replace(p, m=1 << 20, n=1 << 20)
    every = _every(large if p.kind != "sums" else p, target)

    def unlike(t: Tile) -> float:
        far = abs(log2(t.m / choice.m)) + abs(log2(t.n / choice.n)) + (t.k != choice.k) / 2
        return far + (bool(t.descriptors) != bool(choice.descriptors)) * _OTHER_WAY

    return sorted((t for t in every if t != choice), key=unlike)[:_TRIED]


#: how unlike a tile is whose loads are made in the other way
_OTHER_WAY = 0.6


def divisor_of_k(p: Problem, tile: Tile) -> int:
    """The tile's block of K if K divides into such; else 1."""
    return tile.k if p.span % tile.k == 0 else 1

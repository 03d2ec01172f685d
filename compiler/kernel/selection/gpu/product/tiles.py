"""Tile selection for contractions: candidates, their resources on a device, predicted time.

The model is a roofline of one multiprocessor. A tile takes the greater time of its arithmetic and of its loads from the
L2 cache, then the time of its stores to that cache, which its arithmetic does not overlap. All tiles together take at
least the time of the tensors' memory traffic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil, lcm, log2

from gflow.compiler.targets import Device, Target
from gflow.compiler.targets.devices import MMA_SHARED, TMA
from gflow.dialects.program import TritonConfig
from gflow.dialects.records import record

from ....sizes import cdiv
from ...choice import WARP


def widths(n: int) -> tuple[int, int]:
    """The columns of a tile as a power of two and the rest: 192 → 128, 64.

    Blocks of Triton are powers of two, so such a tile has two accumulators.
    """
    most = 1 << (n.bit_length() - 1)
    return most, n - most


@record
class Tile:
    """A tile.

    Attributes:
        m, n: rows and columns of the result. n may be the sum of two powers of two (`widths`), in persistent programs.
        k: the block of K of one step.
        warps, stages: of the launch.
        parts: the pieces of the tile in which the epilogue is computed.
        descriptors: 0: loads by pointers, one program for each tile. 1: loads by descriptors (TMA), one program for
            each tile. Otherwise: loads by descriptors, and so many persistent programs.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    parts: int = 1
    descriptors: int = 0

    def config(self, **more: int) -> TritonConfig:
        """The tile as a Triton configuration. more: constants besides the block sizes."""
        constants = {"BLOCK_M": self.m, "BLOCK_N": widths(self.n)[0], "BLOCK_K": self.k, **more}
        return TritonConfig(constants, self.warps, self.stages)


#: for tensor cores
_CORES = (
    Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(128, 32, 64, 4, 4), Tile(64, 32, 64, 4, 4),
    Tile(32, 64, 64, 4, 4), Tile(32, 32, 64, 4, 4), Tile(16, 128, 64, 4, 4), Tile(16, 64, 128, 4, 4),
    Tile(128, 16, 64, 4, 4), Tile(64, 16, 128, 4, 4),
)  # fmt: skip
#: for tensor cores in persistent programs: with 132 multiprocessors, they leave fewer of them idle in the last wave of
#: products whose columns are a multiple of 192 (768, 2304, 3072) but of no power of two
_UNEVEN = (Tile(256, 192, 64, 8, 3), Tile(128, 192, 64, 8, 4))
#: for products without tensor cores
_SINGLE = (
    Tile(128, 128, 16, 8, 3), Tile(128, 64, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(64, 32, 32, 4, 3),
    Tile(32, 64, 32, 4, 3),
    Tile(32, 32, 32, 4, 3), Tile(16, 64, 32, 4, 3), Tile(64, 16, 32, 4, 3), Tile(16, 16, 32, 2, 3),
)  # fmt: skip
#: for products without `tl.dot`: integers, and products with one row or one column
_SUMS = (Tile(16, 16, 16, 4, 2), Tile(4, 16, 64, 4, 2), Tile(16, 4, 64, 4, 2))
_ROW = (Tile(1, 16, 256, 4, 2), Tile(1, 64, 64, 4, 2), Tile(1, 4, 1024, 4, 2))
_COLUMN = (Tile(16, 1, 256, 4, 2), Tile(64, 1, 64, 4, 2), Tile(4, 1, 1024, 4, 2))

#: the least part of K with split-K
_LEAST_SPLIT = 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@record
class Problem:
    """The sizes and properties of a product that the cost model needs.

    Attributes:
        m, n, k: the sizes of each product.
        batch: the number of products.
        item: the bytes of an element of the operands.
        kind: what computes it: "cores", "single", "double" or "sums" (`kind_of_product`).
        bytes: the bytes of all tensors that are read and written; 0: memory traffic is not counted.
        run: the part of K that a block may span (a convolution's channels); 0: all of K.
        gather: loads of the operands are not vectorized.
        heavy: the epilogue, or the operands' addresses, need much code.
        live: 32-bit words of the epilogue in registers for each element of a tile.
        stored: the bytes of an element of the result.
        descriptors: "PERSISTENT", "DESCRIPTORS" or "" (`Product.way`).
        ragged: only loads by descriptors are vectorized.
        rows: the rows of a tile are a multiple of it, since the epilogue sums so many rows.
        columns: the columns of each piece of a tile are a multiple of it, for the same reason.
        scaled: the first operand is multiplied by numbers, so it goes through registers.
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
    columns: int = 1
    scaled: bool = False

    @property
    def span(self) -> int:
        """The part of K that a block may span."""
        return self.run or self.k


def candidates(p: Problem, target: Target) -> list[Tile]:
    """The tiles that fit the device's registers and shared memory, and are not much larger than the product."""
    if p.kind == "sums":
        found = _ROW if p.m == 1 else _COLUMN if p.n == 1 else _SUMS
        return list(found)
    given = (*(_CORES if p.kind == "cores" else _SINGLE), *_tall(p))
    return _fitting(p, given, target) or [_least(p)]


def _fitting(p: Problem, given: Sequence[Tile], target: Target) -> list[Tile]:
    """The tiles of `given` that are suitable, as `candidates` says, adapted to the problem."""
    d = target.device
    fitting: list[Tile] = []
    for t in given:
        k = t.k
        if p.kind == "cores":
            k = 32 if p.span <= 32 and t.m < 1024 else max(t.k * 2 // p.item, 16)
        if p.scaled and t.m * t.n > _HEAVY and p.kind == "cores" and p.span >= 2 * k:
            # one of two multiplications waits for tensor cores: by the model of loops 1.28 times their cycles, not 1.45
            k, t = 2 * k, replace(t, stages=2)
        if p.gather:
            k = min(k, 32)
            t = replace(t, warps=8 if t.m * t.n >= 4096 else t.warps, stages=2)
        heavy = p.heavy or not target.has(
            MMA_SHARED
        )  # without MMA_SHARED, operands are in registers, too
        if t.m * t.n > (_GATHERED if p.gather else _HEAVY if heavy else t.m * t.n):
            continue
        t = replace(t, k=k)
        t = replace(t, parts=_parts(p, t, target))
        if _shared(t, p.item, d) > d.shared_memory:
            t = replace(t, stages=2)
        fits = holds(p, t, target)
        too_large = (t.m >= 2 * p.m and t.m > 16) or (t.n >= 2 * p.n and t.n > 16)
        whole = t.m % p.rows == 0 and t.n // t.parts % p.columns == 0
        if fits and not too_large and t not in fitting and whole:
            fitting.append(t)
    return fitting


def _least(p: Problem) -> Tile:
    """The smallest tile that the epilogue allows, whatever resources it takes."""
    rows = lcm(16, p.rows)
    return Tile(rows, lcm(16, p.columns), 32 if rows < 1024 else 16, max(4, rows // 64), 2)


def _tall(p: Problem) -> list[Tile]:
    """Narrow tiles of many rows, for epilogues that need whole columns: 32 elements for each thread."""
    if p.rows <= 64:
        return []
    k = 64 if p.kind == "cores" and p.rows <= 256 else 32 if p.rows <= 512 else 16
    widths = [n for n in (64, 32, 16) if 2048 <= p.rows * n <= 16384]
    return [Tile(p.rows, n, k, max(4, p.rows * n // 1024), 3) for n in widths]


def _every(p: Problem, target: Target) -> list[Tile]:
    """The candidates with loads by pointers, then those with loads by descriptors."""
    plain = candidates(p, target)
    uneven: list[Tile] = []
    if p.descriptors == "PERSISTENT" and p.kind == "cores":
        uneven = [t for t in _fitting(p, _UNEVEN, target) if t.n <= p.n]
    loaded = (_by_descriptors(p, t, target) for t in (*plain, *uneven))
    return [*plain, *(t for t in loaded if t is not None)]


#: the most elements of a tile with unvectorized loads, and of one with much code for each element
_GATHERED, _HEAVY = 128 * 64, 128 * 128
#: the registers of a thread that do not depend on the tile
_OTHERS = 40
#: additional registers: for operands that are not read from shared memory; for descriptors and the loop of a persistent
#: program; the same with two accumulators (a tile of 256×192 has 235 in all, 192 for accumulators)
_FRAGMENTS, _WALK, _WALK_UNEVEN = 16, 24, 4
#: the numbers of pieces of a tile, and the fewest columns of a piece
_PARTS, _NARROW = (1, 2, 4, 8), 16


def registers(p: Problem, t: Tile, target: Target) -> float:
    """The registers of a thread: its accumulators, and the greater of operands in the loop and of the epilogue on one
    piece of the tile, which follows the loop."""
    each = t.m * t.n / (WARP * t.warps) * (2 if p.kind == "double" else 1)
    walk = _WALK_UNEVEN if widths(t.n)[1] else _WALK
    others = _OTHERS + (walk if t.descriptors else 0)
    fragments = 0 if target.has(MMA_SHARED) else _FRAGMENTS
    return each + max(fragments, p.live * each / t.parts) + others


def holds(p: Problem, t: Tile, target: Target) -> bool:
    """Whether a tile fits into shared memory, and with its epilogue into the registers that a thread of the launch can
    have."""
    d = target.device
    most = min(d.thread_registers, d.registers // (WARP * t.warps))
    return registers(p, t, target) <= most and _shared(t, p.item, d) <= d.shared_memory


def _parts(p: Problem, t: Tile, target: Target) -> int:
    """The fewest pieces of a tile with which the epilogue fits into registers."""
    options = _pieces(p, t)
    tried = (
        n
        for n in options
        if registers(p, replace(t, parts=n), target) <= target.device.thread_registers
    )
    return next(tried, options[-1])


def _pieces(p: Problem, t: Tile) -> list[int]:
    """The numbers of pieces into which the epilogue may divide a tile; their columns are a power of two."""
    least = t.n // (t.n & -t.n)
    narrow = _NARROW if least == 1 else 2 * _NARROW
    pieces = [n * least for n in _PARTS]
    found = [n for n in pieces if t.n // n >= narrow and t.n // n % p.columns == 0]
    return found or [least]


def _by_descriptors(p: Problem, t: Tile, target: Target) -> Tile | None:
    """The tile with loads by descriptors; None if the problem or the tile does not allow them."""
    if not p.descriptors or not 64 <= t.m <= 256 or t.n < 32:
        return None
    if p.descriptors == "DESCRIPTORS":
        return replace(t, descriptors=1)
    d = target.device
    t = replace(t, descriptors=d.multiprocessors)
    least = _parts(p, t, target)
    for stages in range(t.stages, 1, -1):
        for parts in (n for n in _pieces(p, t) if n >= least):
            # a persistent program loads the next tile while a piece of this one is stored through shared memory
            shared = _shared(t, p.item, d) * stages // t.stages + t.m * t.n * p.stored // parts
            if shared + _DESCRIPTOR_BYTES <= d.shared_memory:
                at_once = min(
                    d.shared_memory // shared,
                    d.registers // int(WARP * t.warps * registers(p, t, target)),
                )
                programs = d.multiprocessors * max(1, at_once)
                return replace(t, stages=stages, parts=parts, descriptors=programs)
    return None


#: bytes of shared memory for descriptors and barriers
_DESCRIPTOR_BYTES = 1024


def _shared(t: Tile, item: int, d: Device) -> int:
    """The bytes of shared memory for operands. item: bytes of an element."""
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
    """The predicted time of a product in seconds. t: its tile. splits: parts of K (split-K)."""
    d = target.device
    tiles = cdiv(p.m, t.m) * cdiv(p.n, t.n) * p.batch * splits
    each = cdiv(tiles, d.multiprocessors)
    took = each * _seconds_of_tile(p, t, splits, each, target)
    if t.descriptors and p.descriptors == "PERSISTENT" and splits == 1:
        took += d.latency + d.descriptor + each * d.next_tile
    else:
        took += _begins(p, t, each, target)
    took = max(took, p.bytes / d.bandwidth)
    if splits > 1:
        took += d.launch + 8 * p.m * p.n * p.batch * splits / d.bandwidth
    return took


def _seconds_of_tile(p: Problem, t: Tile, splits: int, each: int, target: Target) -> float:
    """The time in seconds of one multiprocessor for one tile, or for a part of K of it. each: the tiles that it
    computes."""
    d = target.device
    steps = p.k // p.span * cdiv(p.span, t.k)
    steps = cdiv(steps, splits)
    k, held = steps * t.k, min(each, _at_once(p, t, target))
    arithmetic = 2 * t.m * t.n * k / (_rates(d, p.item)[p.kind] * _effect(p, t, held))
    loads = (t.m + t.n) * k * p.item / d.l2_bandwidth
    if not t.descriptors:
        arithmetic *= _POINTERS if target.has(TMA) else 1.0
        loads *= _RAGGED if p.ragged else 1.0
    waits = (steps - 1) * _ARRIVES / (max(1, t.stages - 1) * held)  # `_begins` has the first one
    stores = t.m * t.n * (4 if splits > 1 else p.stored) / d.l2_bandwidth
    return max(arithmetic, loads, waits) + stores


def _effect(p: Problem, t: Tile, held: int) -> float:
    """The share of the device's rate that a tile reaches. Smaller tiles hide less latency; tensor cores work on those
    of all programs of a multiprocessor, `held`."""
    if p.kind != "cores":
        return min(1.0, 0.5 + t.m * t.n / 32768)
    return min(1.0, 0.5 + t.m * t.n * held / 65536)


def _at_once(p: Problem, t: Tile, target: Target) -> int:
    """The programs that a multiprocessor holds. The compiler keeps about half of the epilogue's values of `registers`,
    as it computes them one after the other."""
    d = target.device
    if t.descriptors > 1:
        return max(1, t.descriptors // d.multiprocessors)
    used = int(WARP * t.warps * registers(replace(p, live=p.live / 2), t, target))
    fits = d.shared_memory // max(_shared(t, p.item, d), 1), d.registers // used, d.blocks
    return max(1, min(fits))


def _begins(p: Problem, t: Tile, each: int, target: Target) -> float:
    """The time in seconds that a multiprocessor waits for the first loads of its programs, `each` of them in turn."""
    d = target.device
    turns = cdiv(each, min(4, _at_once(p, t, target)))
    return turns * (d.latency + (d.descriptor if t.descriptors else 0.0))


def together(products: Sequence[Problem], target: Target) -> tuple[float, Tile] | None:
    """The best tile for products in one launch, and the predicted time in seconds; None if no tile suits all of them.

    Each program computes one whole tile of one product.
    """
    suits = [_every(p, target) for p in products]
    common = [t for t in suits[0] if all(t in some for some in suits)]
    found = [(_seconds_together(products, t, target), n, t) for n, t in enumerate(common)]
    if not found:
        return None
    least, _, tile = min(found)
    return least, tile


def _seconds_together(products: Sequence[Problem], t: Tile, target: Target) -> float:
    d = target.device
    tiles = [cdiv(p.m, t.m) * cdiv(p.n, t.n) * p.batch for p in products]
    held = cdiv(sum(tiles), d.multiprocessors)
    own = [_seconds_of_tile(p, t, 1, held, target) for p in products]
    work = sum(s * n for s, n in zip(own, tiles))
    # shorter tiles fill the last wave
    each = ceil(work / (max(own) * d.multiprocessors) - 1e-6)
    took = each * max(own) + _begins(products[0], t, each, target)
    return max(took, sum(p.bytes for p in products) / d.bandwidth)


#: the factor by which unvectorized loads are slower
_RAGGED = 4
#: the factor by which loops are slower whose loads are by pointers, on devices with bulk copies: measured on an H200
_POINTERS = 1.06
#: seconds until the loads of a step of a loop have arrived, of which all stages but one are under way at once: with one
#: small tile of four stages for each multiprocessor of an H200, a step takes a third of it
_ARRIVES = 1e-6


def fastest(p: Problem, target: Target) -> float:
    """The predicted time of a product in seconds, with the tile and split-K that the model chooses."""
    splits = best_splits(p, target)
    return seconds(p, fastest_tile(p, splits, target), splits, target)


def best_splits(p: Problem, target: Target, whole: Problem | None = None) -> int:
    """The number of parts of K (split-K) with the least predicted time; 1: K isn't split.

    whole: the problem where K isn't split, if its epilogue allows other tiles; None: `p`.
    """
    most = max(1, p.k // _LEAST_SPLIT)
    one = p if whole is None else whole
    undivided = _every(one, target)
    # programs with a part of K are not persistent
    divided = _every(p, target) if whole is not None else undivided
    tiles = [t for t in divided if not widths(t.n)[1]]

    def took(s: int) -> float:
        if s == 1:
            return min(seconds(one, t, 1, target) for t in undivided)
        return min(seconds(p, t, s, target) for t in tiles)

    return min((s for s in _SPLITS if s <= most), key=lambda s: (took(s), s))


def fastest_tile(p: Problem, splits: int, target: Target, used: Collection[Tile] = ()) -> Tile:
    """The tile with the least predicted time.

    used: the tiles for which the same kernel is already compiled; one of them is chosen if it takes at most `_HARDLY`
    times as long.
    """
    found = [(seconds(p, t, splits, target), n, t) for n, t in enumerate(_every(p, target))]
    best = min(found)
    again = [f for f in found if f[2] in used and f[0] <= _HARDLY * best[0]]
    return min(again)[2] if again else best[2]


#: a tile that is already compiled may be slower by this factor
_HARDLY = 1.25
#: the number of alternatives for autotuning
_TRIED = 7


def neighbours(choice: Tile, p: Problem, target: Target) -> list[Tile]:
    """The tiles that autotuning tries besides a choice, the most similar ones first.

    They depend only on the choice, not on m and n, so that products of other sizes share the kernels. A tile that
    differs only in how operands are loaded (pointers or descriptors) counts as similar.
    """
    large = replace(p, m=1 << 20, n=1 << 20)
    every = _every(large if p.kind != "sums" else p, target)

    def unlike(t: Tile) -> float:
        far = abs(log2(t.m / choice.m)) + abs(log2(t.n / choice.n)) + (t.k != choice.k) / 2
        return far + (bool(t.descriptors) != bool(choice.descriptors)) * _OTHER_WAY

    return sorted((t for t in every if t != choice), key=unlike)[:_TRIED]


#: the distance between tiles that differ in how operands are loaded
_OTHER_WAY = 0.6


def divisor_of_k(p: Problem, tile: Tile) -> int:
    """The tile's block of K if it divides K (or the part of K that a block may span); otherwise 1."""
    return tile.k if p.span % tile.k == 0 else 1

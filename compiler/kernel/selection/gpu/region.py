"""The launches of a fused region: one, or a few where programs share a reduction.

sum over 1,000,000 rows of 64    →    {kind = "region", block = [128, 32], warps = 4, pieces = 432, scratch = 110592}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gflow.compiler.targets import Device
from gflow.dialects.program import Place, TritonConfig

from ...description import Kernel
from ..choice import Choice
from .block_sizes import configs_of
from .split_reductions import Scratch, pieces_of, stages
from .tiling import Tiling, partial_stores, run_of, tiling_of

_START = Place("arena", 0, 0)


@dataclass(frozen=True)
class Launch:
    """A kernel, how its programs share it, and ways to run it; places by operand and result number.

    pieces: the stores of partial results. chunk: how much of the looped axis a program takes; 0 for all of it.
    """

    k: Kernel
    tiling: Tiling
    configs: tuple[TritonConfig, ...]
    loads: tuple[Place, ...]
    stores: tuple[Place, ...]
    pieces: frozenset[int] = frozenset()
    chunk: int = 0


def launches(
    k: Kernel,
    loads: Sequence[Place],
    stores: Sequence[Place],
    device: Device,
    space: Scratch,
    choice: Choice | None = None,
) -> Iterator[Launch]:
    """The launches of a kernel, in order; places of partial results are taken from `space`.

    choice: how the first one runs, and by how many programs a reduction is shared; the model's choice if None.
    """
    reducing = any(n.op == "reduce" for n in k.nodes)
    if k.numel == 0 and not reducing:
        return
    t = tiling_of(k)
    chosen = None if choice is None else config_of(choice, k, t)
    if t.runs:
        configs = configs_of(k, t, device, chosen)
        yield Launch(k, t, configs, tuple(loads), tuple(stores), partial_stores(k), run_of(k))
        return
    count = 1
    if reducing:
        count = pieces_of(k, t, device) if choice is None else choice.pieces
    if count <= 1:
        yield Launch(k, t, configs_of(k, t, device, chosen), tuple(loads), tuple(stores))
        return
    for s in stages(space, k, t, count, tuple(loads), tuple(stores), device, chosen):
        if s.shared:
            configs = configs_of(s.k, s.shared, device, chosen)
            yield Launch(s.k, s.shared, configs, s.loads, s.stores, s.pieces, s.chunk)
        else:
            yield from launches(s.k, s.loads, s.stores, device, space)


def config_of(choice: Choice, k: Kernel, t: Tiling) -> TritonConfig:
    """A choice's block and warps as a way to run a kernel."""
    if t.cols < 0:
        return TritonConfig({}, choice.warps, 1)
    names = ("ROWS", "COLS") if t.rows else ("COLS",)
    choice.check(len(choice.block) == len(names), f"needs a block of {len(names)} sizes")
    row = k.sizes[t.cols]
    whole = t.cols in k.reduced and not t.loop_cols
    choice.check(
        not whole or choice.block[-1] >= row, f"needs a block with rows of {row} as a whole"
    )
    choice.check(
        not t.runs or run_of(k) % choice.block[0] == 0, "has rows that no run divides into"
    )
    choice.check(choice.pieces == 1 or bool(t.axis and not t.runs), "shares what one program has")
    return TritonConfig(dict(zip(names, choice.block)), choice.warps, 1)


def choose_region(k: Kernel, loads: int, stores: int, device: Device) -> Choice:
    """How a region runs. loads, stores: how many operands and results the op has."""
    space = Scratch(_START)
    made = list(launches(k, (_START,) * loads, (_START,) * stores, device, space))
    if not made:
        return Choice("none")
    t = tiling_of(k)
    pieces = 1
    if made[0].chunk and not t.runs:
        pieces = pieces_of(k, t, device)
    first = made[0].configs[0]
    block = tuple(first.constants.values())
    return Choice("region", space.used, block=block, warps=first.num_warps, pieces=pieces)

"""The launches of a fused region: one, or several where programs share a reduction.

sum over 1,000,000 rows of 64    →    {kind = "region", block = [128, 32], warps = 4, pieces = 432, scratch = 110592}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

from gflow.compiler.targets import Device
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.records import record

from ....description import Kernel
from ...choice import Choice, Way, way_of
from .block_sizes import configs_of
from .pipelining import modelled_stages
from .split_reductions import Scratch, pieces_of, split
from .tiling import Tiling, partial_stores, run_of, tiling_of

_START = Place("arena", 0, 0)

#: returns the parameters of the next launch
Next = Callable[[], Way]


@record
class Launch:
    """A launch of a region's kernel.

    Attributes:
        k: the kernel.
        tiling: how programs divide its index space.
        configs: its configurations, the chosen one first.
        stages: pipeline stages of its loop; 0 without a loop.
        loads, stores: addresses by number of operand and result.
        pieces: the numbers of the stores of partial results.
        chunk: the part of the looped axis that a program processes, in elements; 0: all of it.
        shared: the number of programs that share each reduction, as it was requested.
    """

    k: Kernel
    tiling: Tiling
    configs: tuple[TritonConfig, ...]
    stages: int
    loads: tuple[Place, ...]
    stores: tuple[Place, ...]
    pieces: frozenset[int] = frozenset()
    chunk: int = 0
    shared: int = 1


def launches(
    k: Kernel,
    loads: Sequence[Place],
    stores: Sequence[Place],
    device: Device,
    space: Scratch,
    chosen: Next | None = None,
) -> Iterator[Launch]:
    """The launches of a kernel, in order.

    Args:
        k: the kernel.
        loads, stores: addresses by number of operand and result.
        device: the device.
        space: scratch, from which the addresses of partial results are taken.
        chosen: the parameters of the launches; None: the model's choice.

    Raises:
        CannotLower: the kernel cannot run with the chosen parameters.
    """
    reducing = any(n.op == "reduce" for n in k.nodes)
    if k.numel == 0 and not reducing:
        return
    t = tiling_of(k)
    way = None if chosen is None else chosen()
    config = None if way is None else config_of(way, k, t)
    if t.runs:
        yield _launch(
            k, t, device, config, way, tuple(loads), tuple(stores), partial_stores(k), run_of(k)
        )
        return
    count = 1
    if reducing:
        count = pieces_of(k, t, device) if way is None else way.pieces
    if count <= 1:
        yield _launch(k, t, device, config, way, tuple(loads), tuple(stores))
        return
    for s in split(space, k, t, count, tuple(loads), tuple(stores), device, config):
        if s.shared:
            yield _launch(
                s.k, s.shared, device, config, way, s.loads, s.stores, s.pieces, s.chunk, count
            )
        else:
            yield from launches(s.k, s.loads, s.stores, device, space, chosen)


def _launch(
    k: Kernel, t: Tiling, device: Device, config: TritonConfig | None, way: Way | None, loads: tuple[Place, ...],
    stores: tuple[Place, ...], pieces: frozenset[int] = frozenset(), chunk: int = 0, shared: int = 1,
) -> Launch:  # fmt: skip
    configs = configs_of(k, t, device, config)
    deep = modelled_stages(k, t, configs, chunk, device) if way is None else way.stages
    return Launch(k, t, configs, deep, loads, stores, pieces, chunk, shared)


def config_of(way: Way, k: Kernel, t: Tiling) -> TritonConfig:
    """The block and warps of `way` as a Triton configuration.

    Raises:
        CannotLower: the kernel cannot run with these parameters.
    """
    names = () if t.cols < 0 else ("ROWS", "COLS") if t.rows else ("COLS",)
    way.check(bool(way.warps), "needs warps")
    way.check(len(way.block) == len(names), f"needs a block of {len(names)} sizes")
    whole = t.cols in k.reduced and not t.loop_cols
    if whole:
        row = k.sizes[t.cols]
        way.check(way.block[-1] >= row, f"needs a block with rows of {row} as a whole")
    if t.held:
        column = prod(k.sizes[d] for d in t.rows)
        way.check(way.block[0] >= column, f"needs a block with columns of {column} as a whole")
    way.check(not t.runs or run_of(k) % way.block[0] == 0, "has rows that no run divides into")
    way.check(way.pieces == 1 or bool(t.axis and not t.runs), "shares what one program has")
    way.check(bool(way.stages) == bool(t.axis), "has stages exactly where there is a loop")
    return TritonConfig(dict(zip(names, way.block)), way.warps, 1)


def choose_region(k: Kernel, loads: int, stores: int, device: Device) -> Choice:
    """The choice for a region. loads, stores: the number of the op's operands and results."""
    space = Scratch(_START)
    ways = ways_of_kernel(k, loads, stores, device, space)
    if not ways:
        return Choice("none")
    return Choice("region", space.used).with_ways(ways)


def ways_of_kernel(
    k: Kernel, loads: int, stores: int, device: Device, space: Scratch | None = None
) -> list[Way]:
    """The parameters that the model chooses for each launch of a kernel. space: scratch for partial results."""
    made = launches(k, (_START,) * loads, (_START,) * stores, device, space or Scratch(_START))
    return [replace(way_of(m.configs[0], m.shared), stages=m.stages) for m in made]

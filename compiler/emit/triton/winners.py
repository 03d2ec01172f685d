"""Results of autotuning, written into each op's `gflow.kernel`.

{kind = "product", tile = array<i64: 128, 256, 64>, …}    →    {kind = "product", tile = array<i64: 64, 256, 64>, …,
                                                                tuned = "NVIDIA H200"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gflow.compiler.kernel.selection.choice import Choice, choice_of, way_of
from gflow.dialects.marks import KERNEL
from gflow.dialects.program import AtenStep, LaunchStep, Program, Step, TritonConfig

from .build import built_again
from .library_calls import Instead, library_of
from .program_builder import Builder


def with_winners(
    program: Program, found: Program, calls: Mapping[int, Instead], device: str
) -> Program:
    """`found`, with the choices of autotuning written into its IR.

    Pointwise ops that share a launch are left as they are, since such a launch has only one configuration. All products
    of a shared launch get its configuration.

    Args:
        program: the program before autotuning.
        found: the result of `autotune.tune`.
        calls: the library calls that `tune` was given.
        device: the name of the device on which was measured.
    """
    with built_again(program) as (module, b, _):
        timed = {race.step: bool(race.seconds) for race in found.races}
        now = 0
        for ops, begin, end in b.units:
            by_library = isinstance(program.steps[begin], LaunchStep) and isinstance(
                found.steps[now], AtenStep
            )
            steps = found.steps[now : now + (1 if by_library else end - begin)]
            results = [timed[n] for n in range(now, now + len(steps)) if n in timed]
            now += len(steps)
            if results and not any(results):
                continue  # for lack of time: the cost model's choice stays
            raced = begin in calls or any(
                len(b.tried.get(n, ((), 0))[0]) > 1 for n in range(begin, end)
            )
            if not raced:
                continue
            choice = choice_of(ops[0].op)
            if by_library:
                name = next(name for name, step in calls[begin].calls.items() if step == steps[0])
                chosen = Choice("pytorch", choice.scratch, library=library_of(name))
            else:
                chosen = _chosen(b, choice, begin, steps)
            for o in ops:
                o.op.attributes[KERNEL] = replace(chosen, tuned=device).attribute()
        return replace(found, ir=module.operation.get_asm(enable_debug_info=True))


def _chosen(b: Builder, choice: Choice, begin: int, steps: Sequence[Step]) -> Choice:
    """A choice with the configurations of launches after autotuning. begin: the number of the op's first step."""
    ways = list(choice.ways)
    for n, step in enumerate(steps, begin):
        if not isinstance(step, LaunchStep):
            continue
        configs, slot = b.tried[n]
        config, way = configs[step.config], ways[slot]
        if choice.tile and slot == len(choice.copies):
            choice = _tiled(choice, config)
            continue
        # the pipeline stages of a region are part of its source
        stages = config.num_stages if way.stages == configs[0].num_stages else way.stages
        ways[slot] = replace(way_of(config, way.pieces, way.precision), stages=stages)
    return choice.with_ways(ways) if ways else choice


def _tiled(choice: Choice, config: TritonConfig) -> Choice:
    """The choice for a product with the tile of a configuration."""
    c = config.constants
    programs, columns = c.get("PERSISTENT", 0), c["BLOCK_N"] + c.get("REST", 0)
    return replace(
        choice, tile=(c["BLOCK_M"], columns, c["BLOCK_K"]), warps=config.num_warps, stages=config.num_stages,
        parts=c.get("PARTS", 1), persistent=programs,
        loads="descriptors" if programs or c.get("DESCRIPTORS") else "pointers",
    )  # fmt: skip

"""Which op of the planned IR a step of the program comes from.

Steps stand in the order of ops, and carry the name and location of theirs; an op may have several
steps, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from gflow.dialects.mlir import func
from gflow.dialects.program import AtenStep, KernelStep, Program, Step

from .sources import Source, source_of
from .ssa import Op, read_body


def members(step: Step) -> tuple[KernelStep | AtenStep, ...]:
    """The kernels of a step: one, or those that share a launch."""
    return step.members if not isinstance(step, (KernelStep, AtenStep)) else (step,)


def sources_of(o: Op) -> Counter[Source]:
    """Where an op comes from: of a fused one, where the ops in it come from, and how many each."""
    if o.name != "fused":
        return Counter([source_of(o.op)])
    inner = [op.operation for op in o.op.regions[0].blocks[0].operations]
    found = Counter(source_of(op) for op in inner if op.name not in _SILENT)
    return found or Counter([source_of(o.op)])


_SILENT = ("gflow.yield", "gflow.constant")


def ops_of_steps(program: Program, function: func.FuncOp) -> list[list[Op | None]]:
    """For each step of a program the ops that its members come from; None where that isn't known.

    function: the planned IR of the program.
    """
    ops = read_body(function).ops
    labels = [f"{o.name} {o.op.location}" for o in ops]
    places: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        places.setdefault(label, []).append(i)
    at = -1

    def find(label: str) -> Op | None:
        nonlocal at
        here = at >= 0 and labels[at] == label
        if here and ops[at].name != "fused":
            return ops[at]
        known = places.get(label, [])
        i = bisect_right(known, at)
        if i < len(known) and (not here or known[i] == at + 1):
            at = known[i]
            return ops[at]
        return ops[at] if here else None

    return [[find(m.label) for m in members(step)] for step in program.steps]

"""Which op of the planned IR a step of the program comes from.

Steps stand in the order of ops, and carry the name and location of theirs; an op may have several
steps, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from gflow.dialects.mlir import func, ir
from gflow.dialects.program import KernelGroup, Member, Program, Step

from .contractions import root_of
from .locations import Source, source_of
from .ssa import Op, read_body


def members(step: Step) -> tuple[Member, ...]:
    """The kernels of a step: one, or those that share a launch."""
    return step.members if isinstance(step, KernelGroup) else (step,)


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
    roots = [root_of(o.op) if o.name == "fused" else None for o in ops]
    labels = [_labels(o, root) for o, root in zip(ops, roots)]
    places: dict[str, list[int]] = {}
    for i, known in enumerate(labels):
        for label in known:
            places.setdefault(label, []).append(i)
    at = -1

    def find(label: str) -> Op | None:
        nonlocal at
        here = at >= 0 and label in labels[at]
        several = here and (ops[at].name != "fused" or roots[at] is not None)
        if several:
            return ops[at]
        known = places.get(label, [])
        i = bisect_right(known, at)
        if i < len(known) and (not here or known[i] == at + 1):
            at = known[i]
            return ops[at]
        return ops[at] if here else None

    return [[find(m.label) for m in members(step)] for step in program.steps]


def _labels(o: Op, root: ir.Operation | None) -> set[str]:
    """What the steps of an op are called: of one with a contraction inside, that's steps, too."""
    found = {f"{o.name} {o.op.location}"}
    if root is not None:
        found.add(f"{root.name.removeprefix('gflow.')} {root.location}")
    return found

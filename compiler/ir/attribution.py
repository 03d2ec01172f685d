"""The op of the planned IR that each step of a program comes from.

Steps are in the order of ops and carry the op's name and location. An op may have several steps, or none.
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
    """The kernels of a step: one, or all that share its launch."""
    return step.members if isinstance(step, KernelGroup) else (step,)


def sources_of(o: Op) -> Counter[Source]:
    """The sources of an op. For a fused op: the sources of the ops in its region, with the number of ops of each."""
    if o.name != "fused":
        return Counter([source_of(o.op)])
    inner = [op.operation for op in o.op.regions[0].blocks[0].operations]
    found = Counter(source_of(op) for op in inner if op.name not in _SILENT)
    return found or Counter([source_of(o.op)])


_SILENT = ("gflow.yield", "gflow.constant")


def ops_of_steps(program: Program, function: func.FuncOp) -> list[list[Op | None]]:
    """For each step of a program, the ops of its members; None if unknown.

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
    """The labels that steps of an op may have, those of the contraction inside of it included."""
    found = {f"{o.name} {o.op.location}"}
    if root is not None:
        found.add(f"{root.name.removeprefix('gflow.')} {root.location}")
    return found

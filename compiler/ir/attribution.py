"""The op of the planned IR that each step of a program comes from.

Steps are in the order of ops and carry the op's name and location. An op may have several steps, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import START, WAIT
from gflow.dialects.program import (
    CollectiveStep,
    KernelGroup,
    Member,
    Program,
    Step,
    WaitStep,
)

from .fused import root_of
from .locations import Source, source_of
from .ssa import Op, read_body
from .views import IN_PLACE


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
    running = [i for i, o in enumerate(ops) if o.name == WAIT or _has_steps(o)]
    for i in running:
        for label in labels[i]:
            places.setdefault(label, []).append(i)
    exchanged = {(o.name, _sequence(o)): i for i, o in enumerate(ops) if o.name in (START, WAIT)}
    at = -1

    def find(step: Member) -> Op | None:
        nonlocal at
        if isinstance(step, CollectiveStep | WaitStep):  # a wait has the label of its start
            name = WAIT if isinstance(step, WaitStep) else START
            at = exchanged[name, step.sequence]
            return ops[at]
        label = step.label
        here = at >= 0 and label in labels[at]
        several = here and (ops[at].name != "fused" or roots[at] is not None)
        if several:
            return ops[at]
        known = places.get(label, [])
        i = bisect_right(known, at)
        if i < len(known) and (not here or known[i] == running[bisect_right(running, at)]):
            at = known[i]
            return ops[at]
        return ops[at] if here else None

    return [[find(m) for m in members(step)] for step in program.steps]


def _has_steps(o: Op) -> bool:
    """Whether an op has a place in memory that its own steps write: no view, no constant."""
    return "gflow.buffers" in o.op.attributes and IN_PLACE not in o.op.attributes


def _sequence(o: Op) -> int:
    """The sequence number of a start, or of the start that a wait is for."""
    started = o.op.operands[0].owner.operation if o.name == WAIT else o.op
    return ir.IntegerAttr(started.attributes["sequence"]).value


def _labels(o: Op, root: ir.Operation | None) -> set[str]:
    """The labels that steps of an op may have, those of the contraction inside of it included."""
    found = {f"{o.name} {o.op.location}"}
    if root is not None:
        found.add(f"{root.name.removeprefix('gflow.')} {root.location}")
    return found

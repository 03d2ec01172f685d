"""Dependences between ops: operands, readers of an old value before its update, and checks and steps that may fail
before updates, so a call that fails has changed nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gflow.compiler.ir.failing import may_fail
from gflow.compiler.ir.ssa import Body, Op, aliases
from gflow.compiler.ir.views import Layout, layouts, readers
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.structure import BRANCH, CHECK


@dataclass
class Dependences:
    """The dependences of a function.

    Args:
        before: for each op, the ops that must come before it.
        early: ops that compute new values of arguments, and can wait for all readers of the old values.
    """

    body: Body
    at: list[Layout]
    before: list[set[int]]
    early: set[int]

    @cached_property
    def after(self) -> list[list[int]]:
        """For each op the ops that must come after it."""
        after: list[list[int]] = [[] for _ in self.before]
        for i, needs in enumerate(self.before):
            for n in needs:
                after[n].append(i)
        return after


def dependences_of(function: func.FuncOp, body: Body) -> Dependences:
    """The dependences of a function with which each update that can be made in place stays so, and that are minimal
    otherwise."""
    at = layouts(function, body)
    updates: dict[int, list[int]] = {}  # op → arguments that it updates
    for v, alias in zip(body.returned, aliases(function, body)):
        if alias is not None and body.producer[v] >= 0:
            updates.setdefault(body.producer[v], []).append(body.arguments[alias])
    reads = readers(body, at)
    others = {
        p: {r for a in arguments for r in reads.get(a, ())} - {p}
        for p, arguments in updates.items()
    }
    # nothing is updated until all checks are done
    checks = {o.index for o in body.ops if o.name == CHECK}
    for waiting in others.values():
        waiting |= checks
    # an op that may fail is meant for the branch that the program has taken
    branches = [o.index for o in body.ops if o.name == CHECK and _error(o) == BRANCH]
    # a reader that needs the update's result comes after it in any order, so a copy will be inserted
    late = _reached(body, {p: {r for r in rs if r > p} for p, rs in others.items()})
    before = [{body.producer[v] for v in o.operands if body.producer[v] >= 0} for o in body.ops]
    for o in body.ops if branches else ():
        if o.name == CHECK or may_fail(o):
            before[o.index].update(b for b in branches if b < o.index)
    early = set(others) - late
    for p in early:
        before[p] |= others[p]
    free = [set(b) for b in before]
    failing = {o.index for o in body.ops if may_fail(o)}
    for p in set(updates) - _reached(body, {p: failing - {p} for p in updates}):
        before[p] |= failing - {p}
    found = Dependences(body, at, before, early)
    if failing and _has_circle(found):
        before = free
        found = Dependences(body, at, before, early)
    if _has_circle(found):  # two updates that would wait for each other: program order decides
        for p in early:
            before[p] -= {r for r in others[p] if r > p}
        found = Dependences(body, at, before, early)
    return found


def _error(check: Op) -> str:
    return str(ir.StringAttr(check.op.attributes["error"]).value)


def _has_circle(found: Dependences) -> bool:
    waiting = [len(b) for b in found.before]
    ready = [i for i, n in enumerate(waiting) if n == 0]
    seen = 0
    while ready:
        seen += 1
        for j in found.after[ready.pop()]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    return seen < len(found.before)


def _reached(body: Body, targets: dict[int, set[int]]) -> set[int]:
    """The ops `p` from whose results one of `targets[p]` is computed.

    One walk over the program serves all of them: each op has the set of those it depends on, as
    the bits of an integer.
    """
    bit = {p: 1 << n for n, p in enumerate(p for p, ops in targets.items() if ops)}
    if not bit:
        return set()
    depends = [0] * len(body.ops)
    for o in body.ops:
        for v in o.operands:
            p = body.producer[v]
            if p >= 0:
                depends[o.index] |= depends[p] | bit.get(p, 0)
    return {p for p in bit if any(depends[t] & bit[p] for t in targets[p])}

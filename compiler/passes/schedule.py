"""Update parameters as soon as their gradients are known and their old values are no longer needed.

    %g0 = gflow.matmul …   (gradient of w0)        %g0 = gflow.matmul …
    %d  = gflow.matmul(%dy, %w0)                   %d  = gflow.matmul(%dy, %w0)
    %g1 = gflow.matmul …   (gradient of w1)    →   %u0 = gflow.fused(%w0, %g0)   // %g0 dies here
    %u0 = gflow.fused(%w0, %g0)                    %g1 = gflow.matmul …
    %u1 = gflow.fused(%w1, %g1)                    %u1 = gflow.fused(%w1, %g1)

In program order all gradients live until the optimizer runs at the end; here each dies at once,
and its update reads it from the cache. An update waits for every op that reads the old value, so
it can be written in place. Everything else keeps its order.
"""

from __future__ import annotations

import heapq

from gflow.dialects.mlir import func

from ..ssa import Body, aliases, read_body
from ..views import VIEW_OPS
from .base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    order = _order(body, aliases(function, body))
    if order != sorted(order):
        for i in order:
            body.ops[i].op.move_before(body.terminator)


def _order(body: Body, target: list[int | None]) -> list[int]:
    """Op numbers in their new order. target: the argument that each returned value updates."""
    updates: dict[int, list[int]] = {}  # op → arguments that it updates
    for v, alias in zip(body.returned, target):
        if alias is not None and body.producer[v] >= 0:
            updates.setdefault(body.producer[v], []).append(body.arguments[alias])
    readers = _readers(body)
    others = {
        p: {r for a in arguments for r in readers.get(a, ())} - {p}
        for p, arguments in updates.items()
    }
    # a reader that needs the update's result comes after it in any order: a copy will be made
    late = _reached(body, {p: {r for r in rs if r > p} for p, rs in others.items()})
    before = [{body.producer[v] for v in o.operands if body.producer[v] >= 0} for o in body.ops]
    early = set(others) - late
    for p in early:
        before[p] |= others[p]
    return _topological(before, early) or list(range(len(body.ops)))


def _readers(body: Body) -> dict[int, list[int]]:
    """For each value the ops that may read its memory, through views too."""
    root = list(range(len(body.values)))
    readers: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            readers.setdefault(root[v], []).append(o.index)
        if o.name in VIEW_OPS:
            root[o.results[0]] = root[o.operands[0]]
    return readers


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


def _topological(before: list[set[int]], early: set[int]) -> list[int] | None:
    """Program order, but for `early` ops, which come as soon as they can; None for a circle.

    before: for each op the ops that must come before it.
    """
    waiting = [len(b) for b in before]
    after: list[list[int]] = [[] for _ in before]
    for i, needs in enumerate(before):
        for n in needs:
            after[n].append(i)
    heap = [(i not in early, i) for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        _, i = heapq.heappop(heap)
        order.append(i)
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(heap, (j not in early, j))
    return order if len(order) == len(before) else None


PASS = Pass("gflow-schedule", run, NoOptions, __doc__ or "")

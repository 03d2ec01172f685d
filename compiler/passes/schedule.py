"""Update parameters as soon as their gradients are known and their old values are no longer needed.

    %g0 = gflow.matmul …   (gradient of w0)          %g0 = gflow.matmul …
    %d  = gflow.matmul(%dy, %w0)                     %d  = gflow.matmul(%dy, %w0)
    %g1 = gflow.matmul …   (gradient of w1)    →     %u0 = gflow.fused(%w0, %g0)     // %g0 is dead from here
    %u0 = gflow.fused(%w0, %g0)                      %g1 = gflow.matmul …
    %u1 = gflow.fused(%w1, %g1)                      %u1 = gflow.fused(%w1, %g1)

In program order all gradients live until the optimizer runs at the end; here each dies at once, and its update reads it
from the cache. An update waits for every op that reads the old value, so it can be written in place. Everything else
keeps its order.
"""

from __future__ import annotations

import heapq

from gflow.dialects.mlir import func

from ..ssa import Body, read_body
from ..views import VIEW_OPS
from .base import NoOptions, Pass
from .materialize import aliases


def _roots(body: Body) -> list[int]:
    """For each value the value whose memory it may look at."""
    root = list(range(len(body.values)))
    for o in body.ops:
        if o.name in VIEW_OPS:
            root[o.results[0]] = root[o.operands[0]]
    return root


def _order(body: Body, target: list[int | None]) -> list[int]:
    root = _roots(body)
    before: list[set[int]] = [
        {body.producer[v] for v in o.operands if body.producer[v] >= 0} for o in body.ops
    ]
    readers: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            readers.setdefault(root[v], []).append(o.index)
    updates: dict[int, list[int]] = {}  # op → arguments that it updates
    for v, alias in zip(body.returned, target):
        if alias is not None and body.producer[v] >= 0:
            updates.setdefault(body.producer[v], []).append(body.arguments[alias])
    early: set[int] = set()
    for p, arguments in updates.items():
        others = {r for a in arguments for r in readers.get(a, []) if r != p}
        # a reader that needs the update's result comes after it in any order: a copy will be made
        later = {r for r in others if r > p}
        if not later or not later & _downstream(body, p):
            before[p] |= others
            early.add(p)
    return _topological(before, early) or list(range(len(body.ops)))


def _downstream(body: Body, p: int) -> set[int]:
    """The ops that depend on a result of op `p`."""
    seen: set[int] = set()
    stack = [u for r in body.ops[p].results for u in body.users[r]]
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            stack += [u for r in body.ops[op].results for u in body.users[r]]
    return seen


def _topological(before: list[set[int]], early: set[int]) -> list[int] | None:
    """Program order, but for `early` ops, which come as soon as they can; None if there is a circle."""
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


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    order = _order(body, aliases(function, body))
    if order == list(range(len(order))):
        return
    for i in order:
        body.ops[i].op.move_before(body.terminator)


PASS = Pass("gflow-schedule", run, NoOptions, __doc__ or "")

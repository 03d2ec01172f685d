"""Orders with a low peak of live bytes.

Finding the lowest peak is NP-hard. The best of several candidates is kept; program order is one of them. `frees_first`
runs an op as soon as possible if it frees more than it needs. `needs_late` runs an op as late as possible if it needs
more than it frees; it applies the same rule to the reversed program.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gflow.compiler.ir.ssa import Body
from gflow.compiler.memory.liveness import Lives, lives_in

from .dependences import Dependences
from .lists import updates_first


def least_memory(found: Dependences, start: Lives, scratch: Mapping[int, int]) -> list[int]:
    """The candidate with the lowest peak; among equal ones that with the lowest average; program order unless another
    candidate needs less.

    start: the live ranges in program order. scratch: the bytes that each op needs while it runs.
    """
    program = list(range(len(found.before)))
    sizes = _sizes(start)

    def need(lives: Lives, order: Sequence[int]) -> tuple[int, int]:
        per_op = [live + scratch.get(i, 0) for i, live in zip(order, lives.per_op)]
        return max(per_op, default=0), sum(per_op)

    best, least = program, need(start, program)
    tried = {tuple(program)}

    def consider(order: list[int]) -> None:
        nonlocal best, least
        if tuple(order) in tried:
            return
        tried.add(tuple(order))
        lives = lives_in(reordered(start.body, order), start.at, start.place, start.takes_over)
        if need(lives, order) < least:
            best, least = order, need(lives, order)

    first = updates_first(found)
    for base in (first, program):
        consider(base)
        early = frees_first(found, sizes, base)
        consider(early)
        late = needs_late(found, sizes, base)
        consider(late)
        consider(frees_first(found, sizes, late))
        consider(needs_late(found, sizes, early))
    return best


def reordered(body: Body, order: Sequence[int]) -> Body:
    """The body with its ops in another order. Only `ops` and `producer` are updated."""
    position = [0] * len(order)
    for n, i in enumerate(order):
        position[i] = n
    ops = [replace(body.ops[i], index=n) for n, i in enumerate(order)]
    producer = [position[p] if p >= 0 else -1 for p in body.producer]
    return replace(body, ops=ops, producer=producer)


def _sizes(lives: Lives) -> list[int]:
    """For each value, its bytes in the arena: 0 for views, arguments and results."""
    sizes = [0] * len(lives.body.values)
    for v in lives.buffer_of:
        sizes[v] = lives.body.types[v].nbytes
    return sizes


def _bases(found: Dependences) -> tuple[list[list[int]], list[list[int]]]:
    """For each op, the values that it produces, and those that it reads, also through views."""
    body, at = found.body, found.at
    makes = [[r for r in o.results if at[r].base == r] for o in body.ops]
    reads = [list({at[v].base for v in o.operands}) for o in body.ops]
    return makes, reads


def frees_first(found: Dependences, sizes: Sequence[int], base: Sequence[int]) -> list[int]:
    """`base`, but an op that frees at least as much as it needs comes as early as possible."""
    makes, reads = _bases(found)
    needs = [sum(sizes[v] for v in m) for m in makes]
    readers: dict[int, set[int]] = {}
    for i, values in enumerate(reads):
        for v in values:
            if sizes[v]:
                readers.setdefault(v, set()).add(i)
    return _greedy(found.before, found.after, base, needs, reads, readers, sizes)


def needs_late(found: Dependences, sizes: Sequence[int], base: Sequence[int]) -> list[int]:
    """`base`, but an op that needs more than it frees comes as late as possible.

    In reverse order, an op ends the live ranges of its results, and begins those of the operands of which it is the
    last reader.
    """
    makes, reads = _bases(found)
    # in reverse order, a value is created by its last reader and freed by its producer
    backwards: dict[int, set[int]] = {v: {i} for i, m in enumerate(makes) for v in m if sizes[v]}
    order = _greedy(
        [set(a) for a in found.after],
        [list(b) for b in found.before],
        list(reversed(base)),
        None,
        makes,
        backwards,
        sizes,
        reads,
    )
    return order[::-1]


def _greedy(
    before: Sequence[set[int]],
    after: Sequence[Sequence[int]],
    base: Sequence[int],
    needs: Sequence[int] | None,
    frees: Sequence[Sequence[int]],
    holders: dict[int, set[int]],
    sizes: Sequence[int],
    begins: Sequence[Sequence[int]] = (),
) -> list[int]:
    """Order the ready ops: the one that frees the most more than it needs comes first, if it frees at least as much as
    it needs; otherwise the next one of `base`.

    Args:
        needs: bytes that each op allocates; None: those of the values in `begins[op]` that no earlier op has
            allocated.
        frees: the values that die once all of `holders[value]` have run.
    """
    rank = [0] * len(base)
    for n, i in enumerate(base):
        rank[i] = n
    waiting = [len(b) for b in before]
    begun: set[int] = set()
    left = {v: set(h) for v, h in holders.items()}
    ready: set[int] = set()
    queue: list[tuple[int, int]] = []  # ready ops in the order of `base`
    gains: list[tuple[int, int, int]] = []  # (−gain, rank, op), some of them outdated
    waiters: dict[int, list[int]] = {}  # value → ready ops whose gain it may change

    def gain(i: int) -> int:
        freed = sum(sizes[v] for v in frees[i] if v in left and left[v] == {i})
        if needs is not None:
            return freed - needs[i]
        return freed - sum(sizes[v] for v in begins[i] if v not in begun)

    def offer(i: int) -> None:
        g = gain(i)
        if g >= 0:
            heapq.heappush(gains, (-g, rank[i], i))

    def enter(i: int) -> None:
        ready.add(i)
        heapq.heappush(queue, (rank[i], i))
        for v in {*frees[i], *(begins[i] if needs is None else ())}:
            if sizes[v]:
                waiters.setdefault(v, []).append(i)
        offer(i)

    for i, n in enumerate(waiting):
        if n == 0:
            enter(i)
    order: list[int] = []
    while ready:
        i = -1
        while gains:
            g, _, n = heapq.heappop(gains)
            if n in ready and -g == gain(n):
                i = n
                break
        while i < 0:
            _, n = heapq.heappop(queue)
            if n in ready:
                i = n
        ready.remove(i)
        order.append(i)
        changed: list[int] = []
        for v in frees[i]:
            if v in left:
                left[v].discard(i)
                if len(left[v]) == 1:
                    changed.append(v)
        if needs is None:
            fresh = [v for v in begins[i] if sizes[v] and v not in begun]
            begun.update(fresh)
            changed += fresh
        for v in changed:
            for n in waiters.get(v, ()):
                if n in ready:
                    offer(n)
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                enter(j)
    return order

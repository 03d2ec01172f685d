"""An order of ops for two streams: computation on a device, and communication between ranks.

It is a list schedule by simulated time. Among ready ops the first in program order runs, unless it reads a result of a
collective that is not complete. Collectives whose operand the program computes start as soon as it is ready. Gathers
of arguments start so that they end just before their first reader, since their results are large.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property
from itertools import accumulate

from gflow.compiler.ir.ssa import Body
from gflow.dialects.records import record

from ..schedule.dependences import Dependences

#: a gather starts earlier than necessary by this share of its time, since times of computations are lower bounds
_EARLIER = 0.25


@record
class Streams:
    """What takes how long.

    Attributes:
        found: what must come before what.
        seconds: of each op on the device; none for views and collectives.
        sending: seconds of each collective on the links, by op.
        gathers: those of them that give more than they take.
        forms: ops that only bring a value into another form.
    """

    found: Dependences
    seconds: Sequence[float]
    sending: Mapping[int, float]
    gathers: Set[int]
    forms: Set[int]
    _readers: dict[int, int] = field(default_factory=dict)

    @property
    def body(self) -> Body:
        return self.found.body

    @cached_property
    def begin(self) -> list[float]:
        """The start of each op in program order if nothing had to wait."""
        return [0.0, *accumulate(self.seconds)]

    @cached_property
    def needs(self) -> dict[int, list[int]]:
        """The gathers of arguments, in the order of their readers, with the first reader of each."""
        sends = [i in self.sending for i in range(len(self.seconds))]
        after_any = list(sends)
        for i in range(len(sends)):
            after_any[i] |= any(after_any[p] for p in self.found.before[i])
        free = [
            i
            for i in self.gathers
            if not any(after_any[p] for p in self.found.before[i]) and self.reader(i) < len(sends)
        ]
        return {i: self._closure(i) for i in sorted(free, key=lambda i: (self.reader(i), i))}

    def _closure(self, i: int) -> list[int]:
        seen, todo = {i}, [i]
        while todo:
            for p in self.found.before[todo.pop()]:
                if p not in seen:
                    seen.add(p)
                    todo.append(p)
        return sorted(seen)

    def reader(self, i: int) -> int:
        """The first op in program order that computes with an op's result."""
        if i not in self._readers:
            self._readers[i] = self._first_reader(i)
        return self._readers[i]

    def _first_reader(self, i: int) -> int:
        found, todo = len(self.seconds), [i]
        while todo:
            for u in self.found.after[todo.pop()]:
                if u in self.forms:
                    todo.append(u)
                else:
                    found = min(found, u)
        return found

    @cached_property
    def ahead(self) -> list[float]:
        """The seconds from each op to the end of the call, along the longest path."""
        far = [0.0] * len(self.seconds)
        for i in self._topological()[::-1]:
            rest = max((far[j] for j in self.found.after[i]), default=0.0)
            far[i] = rest + self.seconds[i] + self.sending.get(i, 0.0)
        return far

    def _topological(self) -> list[int]:
        waiting = [len(b) for b in self.found.before]
        order = [i for i, n in enumerate(waiting) if n == 0]
        for i in order:
            for j in self.found.after[i]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    order.append(j)
        return order

    @cached_property
    def sent_by(self) -> dict[int, int]:
        """For each op whose results only collectives read, the last of these collectives."""
        last: dict[int, int] = {}
        for i in reversed(self.only_sent):
            last[i] = max(last.get(u, u) for u in self.found.after[i])
        return last

    @cached_property
    def only_sent(self) -> list[int]:
        """The ops whose results only collectives read: gradients of weights, and the ops on them."""
        kept = [False] * len(self.seconds)
        returned = set(self.body.returned)
        for o in reversed(self.body.ops):
            users = self.found.after[o.index]
            if users and o.index not in self.sending and returned.isdisjoint(o.results):
                kept[o.index] = all(
                    kept[u] or (u in self.sending and u not in self.needs) for u in users
                )
        return [i for i, k in enumerate(kept) if k]

    @cached_property
    def updates(self) -> frozenset[int]:
        """The ops that depend on a reduction of gradients, and on which no collective depends."""
        brought, sent = [False] * len(self.seconds), [False] * len(self.seconds)
        order = self._topological()
        for i in order:
            brought[i] = any(
                brought[p] or (p in self.sending and p not in self.gathers)
                for p in self.found.before[i]
            )
        for i in reversed(order):
            sent[i] = any(u in self.sending or sent[u] for u in self.found.after[i])
        return frozenset(i for i in order if brought[i] and not sent[i] and i not in self.sending)


def schedule(streams: Streams, late: Set[int] = frozenset()) -> tuple[list[int], float]:
    """An order, and the seconds that it takes.

    Args:
        late: ops that come when nothing else is ready, those with the longest way to the end first.
    """
    return _Run(streams, late).run()


class _Run:
    def __init__(self, streams: Streams, late: Set[int]) -> None:
        self.s, self.late = streams, late
        count = len(streams.seconds)
        self.waiting = [len(b) for b in streams.found.before]
        self.there = [0.0] * count  # when the operands of an op are ready
        self.done = [False] * count
        self.order: list[int] = []
        self.now = self.links = 0.0
        self.ready: list[tuple[int, float, int]] = []
        self.first = set(streams.only_sent)
        self.blocked: list[tuple[float, int]] = []
        self.gathers = list(streams.needs)
        self.lowest = 0

    def run(self) -> tuple[list[int], float]:
        for i in [i for i, n in enumerate(self.waiting) if n == 0]:
            self._enter(i)
        while len(self.order) < len(self.done):
            self._gather()
            while self.blocked and self.blocked[0][0] <= self.now:
                self._push(heapq.heappop(self.blocked)[1])
            if self.ready:
                i = heapq.heappop(self.ready)[-1]
                if not self.done[i]:
                    self._take(i)
            elif self.blocked:
                self.now = self.blocked[0][0]
            elif len(self.order) < len(self.done):  # only gathers remain
                self._start_gather()
        return self.order, max(self.now, self.links)

    def _enter(self, i: int) -> None:
        """Add an op whose operands are computed to the ready ops."""
        if i in self.s.needs:
            return
        if i in self.s.sending:
            self._take(i)
        elif self.there[i] > self.now:
            heapq.heappush(self.blocked, (self.there[i], i))
        else:
            self._push(i)

    def _push(self, i: int) -> None:
        late = i in self.late
        rank = 2 if late else int(i not in self.first)
        heapq.heappush(self.ready, (rank, -self.s.ahead[i] if late else 0.0, i))

    def _gather(self) -> None:
        """Start the gathers whose readers are near."""
        while self.lowest < len(self.done) and self._passed(self.lowest):
            self.lowest += 1
        # before the next op, if it would be too late after it
        next_ = self.s.seconds[self.ready[0][-1]] if self.ready else 0.0
        while self.gathers:
            i = self.gathers[0]
            left = self.s.begin[self.s.reader(i)] - self.s.begin[self.lowest] - next_
            lead = (1 + _EARLIER) * self.s.sending[i] + max(0.0, self.links - self.now)
            if left > lead:
                return
            self._start_gather()

    def _passed(self, i: int) -> bool:
        """Whether an op does not show how far the program has progressed."""
        return self.done[i] or i in self.late or i in self.s.sending or i in self.s.forms

    def _start_gather(self) -> None:
        for i in self.s.needs[self.gathers.pop(0)]:
            if not self.done[i]:
                self._take(i)

    def _take(self, i: int) -> None:
        s = self.s
        self.done[i] = True
        self.order.append(i)
        if i in s.sending:
            self.links = end = max(self.links, self.now, self.there[i]) + s.sending[i]
        else:
            self.now = max(self.now, self.there[i]) + s.seconds[i]
            end = 0.0
        for j in s.found.after[i]:
            self.there[j] = max(self.there[j], end)
            self.waiting[j] -= 1
            if self.waiting[j] == 0 and not self.done[j]:
                self._enter(j)

"""An event simulation of a step on many ranks.

Ranks with the same program and the same positions in their groups do the same at the same time. They form a *class*,
which is simulated once. A class has a list of events in program order. Its computations run one after another. A
collective begins when all participating classes have started it and earlier collectives over the same links have ended;
a wait for it ends when it ends. If the events cannot be completed in any order, a `Deadlock` error names the classes
and the collectives that they wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gflow.dialects.records import record

#: kinds of events
COMPUTE, START, WAIT = "compute", "start", "wait"


@record
class Event:
    """An event of a class.

    Attributes:
        kind: `COMPUTE`, `START` or `WAIT`.
        label: a description.
        seconds: the time of a computation or (at its start) of a collective.
        collective: the name of the collective.
        members: the classes that take part in the collective; empty: only this class.
        links: the name of the links; collectives over the same links run one after another.
        nbytes: the bytes that a rank sends.
    """

    kind: str
    label: str = ""
    seconds: float = 0.0
    collective: str = ""
    members: tuple[str, ...] = ()
    links: str = ""
    nbytes: int = 0


class Deadlock(ValueError):
    """Classes wait for collectives that other classes never start, or start in another order."""


@record
class Span:
    """An interval of a class's timeline, in seconds.

    stream: "compute"; the links of a collective; or "wait", where computation waited for a collective.
    """

    rank_class: str
    stream: str
    label: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return self.end - self.begin


@record
class Timeline:
    """The timeline of a step.

    Attributes:
        spans: the intervals of all classes, in order of their begin.
        seconds: the time of the step, until the last class is done.
        sent: the bytes that a rank of each class sends.
    """

    spans: tuple[Span, ...]
    seconds: float
    sent: Mapping[str, int]

    def total(self, rank_class: str, stream: str) -> float:
        """The total time of a class in a stream, in seconds."""
        found = (s for s in self.spans if s.rank_class == rank_class)
        return sum(s.seconds for s in found if s.stream == stream)

    def idle(self, rank_class: str) -> float:
        """The share of the step in which a class does not compute: exposed communication and pipeline bubble."""
        return 1 - self.total(rank_class, COMPUTE) / self.seconds if self.seconds else 0.0

    def exposed(self, rank_class: str) -> float:
        """The exposed communication of a class in seconds: the time in which it waits for collectives."""
        return self.total(rank_class, WAIT)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in the order of their first spans."""
        return tuple(dict.fromkeys(s.rank_class for s in self.spans))


@dataclass
class _Rank:
    """The state of a class in the simulation: its remaining events, and its time."""

    events: deque[Event]
    now: float = 0.0


@dataclass
class _Collective:
    event: Event
    started: dict[str, float] = field(default_factory=dict)
    end: float | None = None


def simulate(programs: Mapping[str, Sequence[Event]]) -> Timeline:
    """Simulate a step.

    Args:
        programs: the events of each class, by its name.

    Raises:
        Deadlock: the events cannot be completed.
    """
    ranks = {name: _Rank(deque(events)) for name, events in programs.items()}
    state = _State(ranks)
    while any(r.events for r in ranks.values()):
        # The class with the earliest time goes first, so that links are occupied in order of time.
        ready = [n for n, r in ranks.items() if r.events and state.can_go(n)]
        if not ready:
            raise Deadlock(state.stuck())
        state.step(min(ready, key=lambda n: state.ready_at(n)))
    end = max([r.now for r in ranks.values()] + list(state.links.values()), default=0.0)
    spans = sorted(state.spans, key=lambda s: (s.begin, s.end))
    return Timeline(tuple(spans), end, state.sent)


class _State:
    def __init__(self, ranks: Mapping[str, _Rank]) -> None:
        self.ranks = ranks
        self.collectives: dict[str, _Collective] = {}
        self.links: dict[tuple[str, str], float] = {}
        self.spans: list[Span] = []
        self.sent = dict.fromkeys(ranks, 0)

    def can_go(self, name: str) -> bool:
        event = self.ranks[name].events[0]
        if event.kind != WAIT:
            return True
        found = self.collectives.get(event.collective)
        return found is not None and found.end is not None

    def ready_at(self, name: str) -> float:
        rank = self.ranks[name]
        event = rank.events[0]
        if event.kind != WAIT:
            return rank.now
        return max(rank.now, self.collectives[event.collective].end or 0.0)

    def step(self, name: str) -> None:
        rank = self.ranks[name]
        event = rank.events.popleft()
        if event.kind == COMPUTE:
            self._span(name, COMPUTE, event.label, rank.now, rank.now + event.seconds)
            rank.now += event.seconds
        elif event.kind == START:
            self._start(name, event)
        else:
            end = self.collectives[event.collective].end or 0.0
            self._span(name, WAIT, event.label, rank.now, end)
            rank.now = max(rank.now, end)

    def _start(self, name: str, event: Event) -> None:
        found = self.collectives.setdefault(event.collective, _Collective(event))
        members = event.members or (name,)
        if set(members) != set(found.event.members or (name,)) or name in found.started:
            raise Deadlock(
                f"{name} starts {event.label or event.collective} with {', '.join(members)}, which another class has "
                "started with others, or which it has started before"
            )
        found.started[name] = self.ranks[name].now
        self.sent[name] += event.nbytes
        if len(found.started) < len(members):
            return
        queues = [(m, event.links) for m in members]
        begin = max([*found.started.values(), *(self.links.get(q, 0.0) for q in queues)])
        found.end = begin + max(event.seconds, found.event.seconds)
        for member, links in queues:
            self.links[member, links] = found.end
            self._span(member, links or "network", event.label, begin, found.end)

    def _span(self, name: str, stream: str, label: str, begin: float, end: float) -> None:
        if end > begin:
            self.spans.append(Span(name, stream, label, begin, end))

    def stuck(self) -> str:
        lines = []
        for name, rank in self.ranks.items():
            if not rank.events:
                continue
            event = rank.events[0]
            found = self.collectives.get(event.collective)
            missing = [m for m in found.event.members if m not in found.started] if found else []
            by = f", which {', '.join(missing)} did not start" if missing else ""
            lines.append(f"{name} waits for {event.label or event.collective}{by}")
        return "the ranks wait for each other: " + "; ".join(lines)

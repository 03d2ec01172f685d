"""`graph.profile()`: the time of a call by kernel, module and phase."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gflow.call.plans.plan import Plan
from gflow.compiler.ir.attribution import members, ops_of_steps, sources_of
from gflow.compiler.ir.locations import Source
from gflow.compiler.ir.tables import ratio, table, time_text
from gflow.compiler.memory.planned import label
from gflow.dialects.program import AtenStep, CollectiveStep, KernelStep, LaunchStep, Member
from gflow.dialects.records import record
from gflow.errors import GraphError
from gflow.runtime.executable import HostSpan

from .notebook import profile_html
from .pages import CLOCK, profile_page, write_graph
from .stage import planned

_SHOWN = 15
_UNKNOWN = Source("", "", "", 0)
#: the number of components of module paths in the table
_DEPTH = 3


@record
class StepTime:
    """One step of the program.

    Attributes: kernel: its function, or ATen overload. op: what it computes. seconds: the median of all rounds.
    shares: the locations of its ops in the author's program, each with its share of the ops.
    """

    kernel: str
    op: str
    seconds: float
    shares: tuple[tuple[Source, float], ...]


@record
class Profile:
    """Times of one compiled graph, in seconds. `str()` gives a table.

    Attributes: seconds: the median of whole calls, without the overhead of profiling. steps: in the order in which
    they run. timeline: for every round, start and end of each step, relative to the start of the call. parts: medians
    of the parts of a call on the host, in order; their sum is the call. calls: the same for every round, with start
    and end of each part. program: the planned IR, for a target. op_seconds: times of its ops, by their numbers.
    """

    name: str
    rounds: int
    seconds: float
    steps: Sequence[StepTime]
    timeline: Sequence[Sequence[tuple[float, float]]] = field(repr=False)
    parts: dict[str, float] = field(default_factory=dict)
    calls: Sequence[Sequence[HostSpan]] = field(default=(), repr=False)
    program: str = field(default="", repr=False)
    target: str = field(default="cpu", repr=False)
    op_seconds: dict[int, float] = field(default_factory=dict, repr=False)

    def by_kernel(self) -> dict[str, float]:
        """Seconds of a call by kernel function or ATen overload, the longest first."""
        return _summed((s.kernel, s.seconds) for s in self.steps)

    def by_module(self, depth: int | None = None) -> dict[str, float]:
        """Seconds of a call by module, the longest first. Children are not included, unless `depth` cuts paths to that
        many components. The time of a kernel that several modules share is divided in proportion to the number of
        their ops in it."""
        return _summed((_cut(module, depth), t) for _, module, t in self._shares())

    def by_phase(self) -> dict[str, float]:
        """Seconds of a call in the forward, the backward and the optimizer."""
        return _summed((phase or "other", t) for phase, _, t in self._shares())

    def _shares(self) -> Iterator[tuple[str, str, float]]:
        for step in self.steps:
            for source, share in step.shares:
                yield source.phase, source.module, step.seconds * share

    def chrome_trace(self, path: str | Path) -> Path:
        """Write all rounds as a file for chrome://tracing or ui.perfetto.dev."""
        pid = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": self.name}},
            {"ph": "M", "pid": pid, "tid": 0, "name": "thread_name", "args": {"name": "steps"}},
            {"ph": "M", "pid": pid, "tid": 1, "name": "thread_name", "args": {"name": "host"}},
        ]
        for number, spans in enumerate(self.calls):
            for name, start, end in spans:
                span = {"ph": "X", "pid": pid, "tid": 1, "name": name, "cat": "host"}
                place = {"ts": start * 1e6, "dur": (end - start) * 1e6}
                events.append({**span, **place, "args": {"round": number}})
        for number, times in enumerate(self.timeline):
            for step, (start, end) in zip(self.steps, times):
                source = step.shares[0][0]
                events.append(
                    {
                        "ph": "X",
                        "pid": pid,
                        "tid": 0,
                        "name": step.op,
                        "cat": source.phase or "other",
                        "ts": start * 1e6,
                        "dur": (end - start) * 1e6,
                        "args": {
                            "kernel": step.kernel,
                            "module": source.module,
                            "source": source.place,
                            "round": number,
                        },
                    }
                )
        target = Path(path)
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        target.write_text(text, encoding="utf-8")
        return target

    def html(self, path: str | Path) -> Path:
        """Write the call of median length over time as a page for a browser, which needs no network: the parts of the
        host's time, and the steps by phase."""
        target = Path(path)
        target.write_text(profile_page(self), encoding="utf-8")
        return target

    def graph_html(self, path: str | Path) -> Path:
        """Write the program's graph as a page for a browser, with the measured times as colours."""
        return write_graph(self.program, self.target, path, self.op_seconds)

    def __str__(self) -> str:
        inside = sum(s.seconds for s in self.steps)
        head = (
            f"{self.name}: {time_text(self.seconds)} a call (median of {self.rounds}), "
            f"{time_text(inside)} of it in {len(self.steps)} steps"
        )
        kinds: dict[str, list[StepTime]] = {}
        for step in self.steps:
            kinds.setdefault(step.kernel, []).append(step)
        host = [("part of a call", "time", "share")]
        for name, seconds in self.parts.items():
            host.append((name, time_text(seconds), ratio(seconds, self.seconds)))
        rows = [("kernel", "steps", "time", "share", "ops")]
        for name, seconds in list(self.by_kernel().items())[:_SHOWN]:
            ops = "; ".join(list(dict.fromkeys(s.op for s in kinds[name]))[:2])
            rows.append(
                (name, f"{len(kinds[name])}", time_text(seconds), ratio(seconds, inside), ops)
            )
        parts = [head, "", table(host, "<>>"), "", table(rows, "<>>><")]
        for title, found in (("module", self.by_module(_DEPTH)), ("phase", self.by_phase())):
            lines = [(title, "time", "share")]
            for name, seconds in list(found.items())[:_SHOWN]:
                lines.append((name or "(none)", time_text(seconds), ratio(seconds, inside)))
            parts += ["", table(lines, "<>>")]
        return "\n".join([*parts, ""])

    def _repr_html_(self) -> str:
        """For notebooks: the text, and the steps of a call as a bar by phase."""
        return profile_html(self)


def _summed(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in pairs:
        found[name] = found.get(name, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _cut(module: str, depth: int | None) -> str:
    return module if depth is None else ".".join(module.split(".")[:depth])


def profile(
    graph: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> Profile:
    """Call a graph once, and then `rounds` times while measuring every step; times are in seconds.

    Raises:
        GraphError: the graph compiled again in between, so the calls differ.
    """
    graph(*args, **kwargs)
    state: Any = graph.__dict__["_state"]
    plans: list[Plan] = [plan for variants in state.plans.values() for plan in variants]
    found: list[_Run] = []
    ends: list[tuple[float, float]] = []
    with _clocked(plans, found):
        for _ in range(rounds):
            start = time.perf_counter()
            graph(*args, **kwargs)
            ends.append((start, time.perf_counter()))
    if len(found) != rounds or any(run.plan is not found[0].plan for run in found):
        raise GraphError(
            f"{state.name} was compiled again during profile(), so the measured calls differ; call the "
            "graph until it no longer compiles, then profile it."
        )
    first = found[0].times[0][0] if found[0].times else ends[0][0]
    timeline = [[(a - first, b - first) for a, b in run.times] for run in found]
    calls = [_whole(run.spans, *end, first) for run, end in zip(found, ends)]
    parts = {
        name: median(_lengths(spans).get(name, 0.0) for spans in calls) for name, _, _ in calls[0]
    }
    parts.pop(CLOCK, None)
    total = median(
        sum(t for name, t in _lengths(spans).items() if name != CLOCK) for spans in calls
    )
    plan = found[0].plan
    op_seconds: dict[int, float] = {}
    steps = list(_steps(plan, timeline, op_seconds))
    compiled = plan.compiled
    return Profile(
        state.name, rounds, total, steps, timeline, parts, calls, compiled.ir,
        compiled.program.target, op_seconds,
    )  # fmt: skip


def _whole(spans: Sequence[HostSpan], start: float, end: float, first: float) -> list[HostSpan]:
    """The parts of a call that ran from `start` to `end`, in seconds relative to `first`."""
    every = [("signature, guards, state", start, spans[0][1]), *spans]
    every.append(("state, schedules, results", every[-1][2], end))
    return [(name, a - first, b - first) for name, a, b in every]


def _lengths(spans: Sequence[HostSpan]) -> dict[str, float]:
    return _summed((name, b - a) for name, a, b in spans)


@record
class _Run:
    """A measured run of a plan: start and end of its steps, and the parts of the host's time."""

    plan: Plan
    times: list[tuple[float, float]]
    spans: list[HostSpan]


@contextmanager
def _clocked(plans: Sequence[Plan], found: list[_Run]) -> Iterator[None]:
    """Within, plans run step by step, and their times are added to `found`."""
    before = [plan.compiled for plan in plans]
    for plan in plans:
        plan.compiled = replace(plan.compiled, run=_timed_run(plan, plan.compiled.run, found))
    try:
        yield
    finally:
        for plan, compiled in zip(plans, before):
            plan.compiled = compiled


def _timed_run(
    plan: Plan, executable: Any, found: list[_Run]
) -> Callable[[list[torch.Tensor]], Any]:
    def run(args: list[torch.Tensor]) -> Any:
        results, times, spans = executable.timed(args)
        found.append(_Run(plan, times, spans))
        return results

    return run


def _steps(
    plan: Plan, timeline: Sequence[Sequence[tuple[float, float]]], op_seconds: dict[int, float]
) -> Iterator[StepTime]:
    """The steps of a plan; their times are added to those of ops, in equal parts if a step has several ops."""
    program = plan.compiled.program
    module, function = planned(plan)
    with module.context:
        for i, (step, ops) in enumerate(zip(program.steps, ops_of_steps(program, function))):
            ones = members(step)
            names = [_called(o) for o in ones]
            more = f" +{len(names) - 1}" if len(names) > 1 else ""
            known = [op for op in ops if op is not None]
            seconds = median(times[i][1] - times[i][0] for times in timeline)
            for op in known:
                op_seconds[op.index] = op_seconds.get(op.index, 0.0) + seconds / len(known)
            counts = sum((sources_of(op) for op in known), Counter()) or Counter([_UNKNOWN])
            shares = tuple((s, n / counts.total()) for s, n in counts.most_common())
            what = label(known[0]) + more if known else names[0]
            yield StepTime(names[0] + more, what, seconds, shares)


def _called(step: Member) -> str:
    """The name of what a step runs."""
    if isinstance(step, AtenStep):
        return step.overload
    if isinstance(step, KernelStep | LaunchStep):
        return step.kernel
    return step.kind if isinstance(step, CollectiveStep) else type(step).__name__

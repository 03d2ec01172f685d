"""Pages for a browser of graphs and profiles; each is one file that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gflow.compiler.ir.modules import entry_function
from gflow.compiler.ir.tables import ratio, time_text
from gflow.compiler.reports.visual.graph import graph_page
from gflow.compiler.reports.visual.timeline import Span, spans_page
from gflow.compiler.targets import parse_target
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

#: the part of a call that exists only while profiling
CLOCK = "clock"
_HOST = "host"
_OTHER = "other"
#: kinds of spans; other phases come after them
_PHASES = ("forward", "backward", "optimizer")


def write_graph(
    program: str, target: str, path: str | Path, seconds: Mapping[int, float] | None = None
) -> Path:
    """Write the page of a planned program. seconds: measured times of its ops; by default the target's roofline
    times."""
    context = make_context()
    with context:
        module = ir.Module.parse(program)
        page = graph_page(entry_function(module), seconds, parse_target(target).device)
    file = Path(path)
    file.write_text(page, encoding="utf-8")
    return file


def profile_page(profile: Any) -> str:
    """The round of median length: the host's time, and the steps of each phase."""
    lengths = [spans[-1][2] - spans[0][1] for spans in profile.calls]
    chosen = sorted(range(len(lengths)), key=lambda i: lengths[i])[len(lengths) // 2]
    host, begin = profile.calls[chosen], profile.calls[chosen][0][1]
    spans = [
        Span(_HOST, a - begin, b - a, name, _HOST, ("only in profiles",) * (name == CLOCK))
        for name, a, b in host
    ]
    for step, (a, b) in zip(profile.steps, profile.timeline[chosen]):
        source = step.shares[0][0]
        phase = source.phase or _OTHER
        told = (
            f"kernel {step.kernel}",
            f"module {source.module}" if source.module else "",
            source.place,
        )
        spans.append(
            Span(f"steps: {phase}", a - begin, b - a, step.op, phase, tuple(filter(None, told)))
        )
    order = {name: n for n, name in enumerate((_HOST, *(f"steps: {p}" for p in _PHASES)))}
    spans.sort(key=lambda s: (order.get(s.row, len(order)), s.row, s.begin))
    kinds = list(dict.fromkeys((*_PHASES, *(s.kind for s in spans))))
    kinds = [k for k in kinds if any(s.kind == k for s in spans)]
    inside = sum(s.seconds for s in profile.steps)
    facts = {
        "call, measured": time_text(lengths[chosen]),
        "in steps": ratio(inside, profile.seconds),
        "steps": f"{len(profile.steps):,}",
        "rounds": str(profile.rounds),
    }
    return spans_page(profile.name, lengths[chosen], facts, kinds, spans)

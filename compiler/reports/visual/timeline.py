"""A timeline as a page; time runs from left to right.

- A simulated step (`gflow-opt --view-timeline FILE.html`) has a row for each stream of each class of ranks.
- A profiled call (`graph.profile(…).html(path)`) has a row for the host and one for the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from gflow.dialects.records import record

from ...distribution.simulator import COMPUTE, WAIT, Timeline
from ...ir.tables import ratio, time_text
from .page import fact, page

#: of kinds, in their order
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9aa3ae")


@record
class Span:
    """An interval of a row: its start and duration in seconds, its kind and label. details: the lines of its
    tooltip."""

    row: str
    begin: float
    seconds: float
    label: str
    kind: str
    details: tuple[str, ...] = ()


def timeline_page(title: str, line: Timeline) -> str:
    """The page for a simulated step."""
    words = {COMPUTE: "computation", WAIT: "waiting"}
    spans = []
    for name in line.classes:
        own = [s for s in line.spans if s.rank_class == name]
        own.sort(key=lambda s: ({COMPUTE: 0, WAIT: 0}.get(s.stream, 1), s.stream))
        for s in own:
            stream = COMPUTE if s.stream == WAIT else s.stream
            kind = words.get(s.stream, "collective")
            spans.append(Span(f"{name}: {stream}", s.begin, s.seconds, s.label, kind))
    first = line.classes[0] if line.classes else ""
    waited = max((line.exposed(c) for c in line.classes), default=0.0)
    facts = {
        "step, simulated": time_text(line.seconds),
        "waiting, at most": ratio(waited, line.seconds) or "0 %",
        "idle, first rank": f"{100 * line.idle(first):.1f} %" if first else "-",
    }
    return spans_page(title, line.seconds, facts, [*words.values(), "collective"], spans)


def spans_page(
    title: str,
    seconds: float,
    facts: Mapping[str, str],
    kinds: Sequence[str],
    spans: Iterable[Span],
) -> str:
    """A page of spans. seconds: the length of the whole timeline. kinds: the kinds of spans, each with its own
    colour."""
    rows: dict[str, int] = {}
    labels: dict[tuple[str, ...], int] = {}
    drawn = [
        [
            rows.setdefault(s.row, len(rows)),
            s.begin,
            s.seconds,
            labels.setdefault((s.label, *s.details), len(labels)),
            kinds.index(s.kind),
        ]
        for s in spans
    ]
    data = {
        "seconds": seconds,
        "rows": list(rows),
        "labels": list(labels),
        "kinds": [[k, _COLOURS[i % len(_COLOURS)]] for i, k in enumerate(kinds)],
        "spans": drawn,
    }
    header = "".join(
        [
            *(fact(name, value) for name, value in facts.items()),
            '<input id="find" type="search" placeholder="op, module, collective" aria-label="find">',
            '<span id="hits" class="soft" role="status"></span>',
            '<button id="fit">fit</button><button id="help" aria-label="keys">?</button>',
            '<span id="key" class="key"></span>',
        ]
    )
    body = (
        f'<div id="chart"><svg id="line" role="img" tabindex="0" aria-label="{escape(title)}: over time"></svg>'
        '<div id="names"></div></div><div id="sums"></div>'
    )
    return page(f"{title}: timeline", "timeline", header, body, data)

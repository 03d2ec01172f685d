"""What ranks do over time as a page: `gflow-opt --view-timeline FILE.html`.

Time runs from left to right; each class of ranks has a row for each of its streams: computation, waiting, and the
links that its collectives use.
"""

from __future__ import annotations

from html import escape

from ...distribution.simulator import COMPUTE, WAIT, Timeline
from ...ir.tables import ratio, time_text
from .page import fact, page


def timeline_page(title: str, line: Timeline) -> str:
    """The page for a simulated step."""
    rows: dict[tuple[str, str], int] = {}
    for name in line.classes:
        streams = dict.fromkeys(s.stream for s in line.spans if s.rank_class == name)
        for stream in sorted(streams, key=lambda s: ({COMPUTE: 0, WAIT: 0}.get(s, 1), s)):
            rows.setdefault((name, COMPUTE if stream == WAIT else stream), len(rows))
    labels: dict[str, int] = {}
    spans = [
        [
            rows[s.rank_class, COMPUTE if s.stream == WAIT else s.stream],
            s.begin,
            s.seconds,
            labels.setdefault(s.label, len(labels)),
            {COMPUTE: 0, WAIT: 1}.get(s.stream, 2),
        ]
        for s in line.spans
    ]
    data = {
        "seconds": line.seconds,
        "rows": [list(key) for key in rows],
        "labels": list(labels),
        "spans": spans,
    }
    first = line.classes[0] if line.classes else ""
    waited = max((line.exposed(c) for c in line.classes), default=0.0)
    header = "".join(
        [
            fact("step", time_text(line.seconds)),
            fact("waiting, at most", ratio(waited, line.seconds) or "0 %"),
            fact("idle, first", f"{100 * line.idle(first):.1f} %" if first else "-"),
            '<input id="find" type="search" placeholder="op, collective" aria-label="find">',
            '<button id="fit">fit</button>',
            '<span class="key"><i class="work"></i>computation <i class="wait"></i>waiting '
            '<i class="move"></i>collective</span>',
            '<span class="soft">wheel: zoom, drag: move</span>',
        ]
    )
    body = (
        f'<svg id="line" role="img" aria-label="{escape(title)}: ranks over time"></svg>'
        '<div id="names"></div>'
    )
    return page(f"{title}: timeline", "timeline", header, body, data)

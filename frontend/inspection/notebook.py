"""What notebooks show of graphs and their reports: `_repr_html_` of `Graph`, `explain()`, `memory()` and `profile()`.

Each is the text that `print` gives, escaped, in one frame; profiles and memory summaries have a bar of their parts
before it. Styles are inline, take the notebook's colours, and load nothing.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

_STYLE = (
    "max-height:28em;overflow:auto;margin:0;padding:.5em;font-size:.85em;line-height:1.35;"
    "border:1px solid currentColor;border-radius:4px"
)
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#76b7b2", "#e15759")


def text_html(text: str, title: str = "", open_: bool = True) -> str:
    """A text as it is printed; long ones scroll, and fold away under their title."""
    body = f'<pre style="{_STYLE}">{html.escape(text.rstrip())}</pre>'
    if not title:
        return body
    state = " open" if open_ else ""
    return f"<details{state}><summary>{html.escape(title)}</summary>{body}</details>"


def bar_html(parts: Mapping[str, float], unit: str) -> str:
    """Parts of a whole as one bar with a legend. unit: what the numbers count, in milliseconds or MiB."""
    total = sum(parts.values())
    if total <= 0:
        return ""
    pieces, legend = [], []
    for n, (name, value) in enumerate(parts.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        share = 100 * value / total
        label = html.escape(f"{name}: {value:.3g} {unit} ({share:.0f} %)")
        pieces.append(f'<div title="{label}" style="width:{share:.2f}%;background:{colour}"></div>')
        dot = (
            f'<span style="display:inline-block;width:.8em;height:.8em;background:{colour}"></span>'
        )
        legend.append(f'<span style="margin-right:1.2em;white-space:nowrap">{dot} {label}</span>')
    bar = f'<div style="display:flex;height:1.2em;margin:.4em 0">{"".join(pieces)}</div>'
    return f'{bar}<div style="font-size:.85em">{" ".join(legend)}</div>'


def profile_html(profile: Any) -> str:
    """A profile: the parts of a call, its steps by phase, and the tables."""
    calls = bar_html({k: 1e3 * v for k, v in profile.parts.items()}, "ms")
    phases = bar_html({k: 1e3 * v for k, v in profile.by_phase().items()}, "ms")
    head = html.escape(f"{profile.name}: {1e3 * profile.seconds:.3g} ms a call")
    tables = text_html(str(profile), "tables", open_=False)
    return f"<div><b>{head}</b>{calls}<div>steps by phase</div>{phases}{tables}</div>"


def memory_html(summary: Any) -> str:
    """A memory summary: what takes how much, and the tables."""
    parts = {"arena": summary.arena, **summary.arguments, "constants": summary.constants}
    parts["results"] = summary.results
    bar = bar_html({k: v / 2**20 for k, v in parts.items() if v}, "MiB")
    head = html.escape(f"{summary.name}: {summary.total / 2**20:.3g} MiB")
    return f"<div><b>{head}</b>{bar}{text_html(str(summary), 'tables', open_=False)}</div>"

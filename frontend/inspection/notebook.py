"""Representations of graphs and their reports in notebooks: `_repr_html_` of `Graph`, `explain()`, `memory()` and
`profile()`.

A graph is a collapsible tree of its modules. The others are the text of `print`, escaped, in a frame; profiles and
memory summaries also have a bar of their parts. Styles are inline, use the notebook's colours, and load nothing.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gflow.compiler.ir.tables import time_text
from gflow.compiler.reports.visual.page import byte_text

_STYLE = (
    "max-height:28em;overflow:auto;margin:0;padding:.5em;font-size:.85em;line-height:1.35;"
    "border:1px solid currentColor;border-radius:4px"
)
_TREE = "font-family:monospace;white-space:nowrap"
#: modules down to this depth are open at first
_OPEN = 1
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#76b7b2", "#e15759")


def text_html(text: str, title: str = "", open_: bool = True) -> str:
    """A printed text; long ones scroll, and can be collapsed under their title."""
    body = f'<pre style="{_STYLE}">{html.escape(text.rstrip())}</pre>'
    if not title:
        return body
    state = " open" if open_ else ""
    return f"<details{state}><summary>{html.escape(title)}</summary>{body}</details>"


def graph_html(text: str) -> str:
    """A printed graph as a tree: modules, and the ops of each, can be collapsed."""
    lines = text.rstrip().splitlines()
    head = html.escape(lines[0].removesuffix(": ("))
    return f'<div style="{_STYLE};{_TREE}"><b>{head}</b>{"".join(_tree(lines[1:]))}</div>'


def _tree(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a printed graph as nested `<details>`. A line that ends in `(` opens a part, `)` alone closes it."""
    depth, ops = 0, list[str]()
    for line in (line.strip() for line in lines):
        if line.startswith("(OPERATOR"):
            ops.append(html.escape(line))
            continue
        if ops:
            yield _fold(f"{len(ops)} operators" if len(ops) > 1 else "1 operator", ops)
            ops = []
        if line.endswith(": ("):
            yield f'<details{" open" if depth < _OPEN else ""} style="margin-left:1.2em">'
            yield f"<summary>{html.escape(line.removesuffix(': ('))}</summary>"
            depth += 1
        elif line == ")":
            depth -= 1
            yield "</details>" if depth >= 0 else ""  # the last one closes the graph
        else:
            yield f'<div style="margin-left:2.4em">{html.escape(line.removesuffix(": ()"))}</div>'


def _fold(title: str, lines: Iterable[str]) -> str:
    rows = "".join(f'<div style="margin-left:2.4em">{line}</div>' for line in lines)
    return f'<details style="margin-left:1.2em"><summary>{title}</summary>{rows}</details>'


def bar_html(parts: Mapping[str, float], written: Callable[[float], str]) -> str:
    """Parts of a whole as one bar with a legend. written: formats a number with its unit."""
    total = sum(parts.values())
    if total <= 0:
        return ""
    pieces, legend = [], []
    for n, (name, value) in enumerate(parts.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        share = 100 * value / total
        label = html.escape(f"{name}: {written(value)} ({share:.0f} %)")
        pieces.append(f'<div title="{label}" style="width:{share:.2f}%;background:{colour}"></div>')
        dot = (
            f'<span style="display:inline-block;width:.8em;height:.8em;background:{colour}"></span>'
        )
        legend.append(f'<span style="margin-right:1.2em;white-space:nowrap">{dot} {label}</span>')
    bar = f'<div style="display:flex;height:1.2em;margin:.4em 0">{"".join(pieces)}</div>'
    return f'{bar}<div style="font-size:.85em">{" ".join(legend)}</div>'


def profile_html(profile: Any) -> str:
    """A profile: the parts of a call, its steps by phase, and the tables."""
    calls = bar_html(profile.parts, time_text)
    phases = bar_html(profile.by_phase(), time_text)
    head = html.escape(f"{profile.name}: {time_text(profile.seconds)} a call")
    tables = text_html(str(profile), "tables", open_=False)
    return f"<div><b>{head}</b>{calls}<div>steps by phase</div>{phases}{tables}</div>"


def memory_html(summary: Any, arguments: Mapping[str, int]) -> str:
    """A memory summary: the parts, and the tables. arguments: the bytes of arguments, by the names to show."""
    parts = {"arena": summary.arena, **arguments, "constants": summary.constants}
    parts["results"] = summary.results
    bar = bar_html({k: v for k, v in parts.items() if v}, lambda size: byte_text(int(size)))
    head = html.escape(f"{summary.name}: {byte_text(summary.total)}")
    return f"<div><b>{head}</b>{bar}{text_html(str(summary), 'tables', open_=False)}</div>"

"""A function as one layered drawing: `gflow-opt --view-graph FILE.svg`.

Each depth of the module tree is a level: a box stands for all ops of a module, at the last level for one op. The
picture shows the deepest level of at most 150 boxes. Boxes have the colours of their modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from gflow.dialects.mlir import func, ir

from .dataflow import Node, nodes_of
from .layered import layered
from .page import asset, colour

_BOX_HEIGHT = 30.0
_MOST_TEXT = 34
#: the most boxes of a picture
_OPENING_BOXES = 150
#: edges that span more layers are drawn faintly
_LONG = 6


@dataclass
class Box:
    """An op, or a module with all its ops. facts: the lines of its tooltip."""

    title: str
    colour: str
    facts: list[str]
    count: int = 1


@dataclass
class Level:
    """The boxes of one depth. name: what a box stands for."""

    name: str
    boxes: list[Box]
    edges: list[tuple[int, int]]


def levels(nodes: list[Node]) -> list[Level]:
    """The levels: one for each depth of modules that differs from the one above, and last that of ops."""
    groups = [n.source.group.strip(":") for n in nodes]
    deepest = max((g.count(".") + 1 for g in groups if g), default=0)
    colours: dict[str, str] = {}
    for g in groups:
        colours.setdefault(g, colour(len(colours)))
    found: list[Level] = []
    for depth in range(1, deepest + 1):
        level = _grouped(f"modules, depth {depth}", nodes, groups, depth, colours)
        if not found or len(level.boxes) > len(found[-1].boxes):
            found.append(level)
    boxes = [
        Box(n.label, colours[g] if g else "var(--panel)", n.facts()) for n, g in zip(nodes, groups)
    ]
    found.append(Level("ops", boxes, [(j, i) for i, n in enumerate(nodes) for j in n.inputs]))
    return found


def _grouped(
    name: str, nodes: list[Node], groups: list[str], depth: int, colours: dict[str, str]
) -> Level:
    keys = [".".join(g.split(".")[:depth]) if g else f" {i}" for i, g in enumerate(groups)]
    members = _members(keys)
    boxes: list[Box] = []
    number = [0] * len(nodes)
    kinds: list[dict[str, int]] = []
    for key, inside in members:
        first = inside[0]
        group = groups[first]
        title, fill = (key, colours[group]) if group else (nodes[first].label, "var(--panel)")
        outputs = [f"gives {o}" for i in inside for o in nodes[i].outputs]
        found: dict[str, int] = {}
        for i in inside:
            number[i] = len(boxes)
            found[nodes[i].label] = found.get(nodes[i].label, 0) + 1
        boxes.append(Box(title, fill, outputs, len(inside)))
        kinds.append(found)
    for box, found in zip(boxes, kinds):
        common = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{count} × {label}" for label, count in common[:12]]
        more = [f"and {len(common) - 12} other kinds"] if len(common) > 12 else []
        box.facts = [f"{box.count} ops", *shown, *more, *box.facts[:8]]
    edges = {
        (number[j], number[i])
        for i, node in enumerate(nodes)
        for j in node.inputs
        if number[i] != number[j]
    }
    return Level(name, boxes, sorted(edges))


def _members(keys: list[str]) -> list[tuple[str, list[int]]]:
    """The nodes of each group. Groups are sorted by their median nodes."""
    found: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return sorted(found.items(), key=lambda item: item[1][len(item[1]) // 2])


def graph_picture(function: func.FuncOp) -> str:
    """The function as SVG. Boxes have tooltips with details."""
    found = levels(nodes_of(function))
    level = found[_opening(found)]
    data = _data(level)
    parts = []
    for path, faint in data["edges"]:
        parts.append(f'<path class="edge{" faint" if faint else ""}" d="{path}"/>')
    for title, x, y, width, fill, facts in data["boxes"]:
        tip = escape("\n".join([title, *facts]))
        parts.append(
            f'<g class="box" transform="translate({x} {y})"><title>{tip}</title>'
            f'<rect x="{-width / 2:.1f}" y="{-_BOX_HEIGHT / 2}" width="{width:.1f}" '
            f'height="{_BOX_HEIGHT}" rx="5" fill="{fill}"/>'
            f'<text text-anchor="middle" dy="4">{escape(_cut(title))}</text></g>'
        )
    style = ":root { --ink: #1c2430; --panel: #f5f6f8; --paper: #fff; --line: #d5dae1; --soft: #66707f; }"
    width, height = data["size"]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 -20 {width + 40:.0f} {height + 40:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="12">\n'
        f"<title>{escape(_name(function))}: {escape(level.name)}</title>\n"
        f"<style>{style}{asset('picture.css')}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _name(function: func.FuncOp) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _opening(found: list[Level]) -> int:
    return max((i for i, v in enumerate(found) if len(v.boxes) <= _OPENING_BOXES), default=0)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _data(level: Level) -> dict:
    """The layout of a level: boxes as [title, x, y, width, fill, facts], edges as [path, faint] and as pairs of
    boxes."""
    widths = [22 + 6.8 * len(_cut(b.title)) for b in level.boxes]
    drawn = layered(widths, level.edges)
    boxes = [
        [b.title, round(x, 1), round(y, 1), round(w, 1), b.colour, b.facts]
        for b, x, y, w in zip(level.boxes, drawn.x, drawn.y, widths)
    ]
    edges = [_edge(drawn.x[a], drawn.y[a], drawn.x[b], drawn.y[b]) for a, b in level.edges]
    return {
        "boxes": boxes,
        "edges": edges,
        "pairs": [list(e) for e in level.edges],
        "size": [round(drawn.width, 1), round(drawn.height, 1)],
    }


def _edge(x0: float, y0: float, x1: float, y1: float) -> tuple[str, int]:
    half = _BOX_HEIGHT / 2
    y0, y1 = (y0 + half, y1 - half) if y0 < y1 else (y0 - half, y1 + half)
    bend = (y1 - y0) / 2
    path = f"M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} {x1:.0f} {y1:.0f}"
    return path, int(abs(y1 - y0) > _LONG * 62)

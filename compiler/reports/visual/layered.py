"""A layered drawing of a directed graph, after Sugiyama: layers, order within them, coordinates.

1. Layers: a node lies one layer below the lowest node that it reads. Nodes without edges come last, in rows.
2. Order: each layer is sorted by the mean position of its nodes' neighbours, downwards and upwards, a few times.
3. Coordinates: each node is placed as close to that mean as its neighbours in the layer allow.

Time is linear in nodes and edges, except for sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 6
_GAP = 18.0
_LAYER_HEIGHT = 62.0
_LEAST_WIDTH = 1000.0


@dataclass
class Drawing:
    """x, y: the centre of each node. width, height: of the whole drawing."""

    x: list[float]
    y: list[float]
    width: float
    height: float


def layered(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], height: float = _LAYER_HEIGHT
) -> Drawing:
    """Place nodes of given widths. Edges that go back (from a later to an earlier node) are ignored."""
    count = len(widths)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if a < b:
            above[b].append(a)
            below[a].append(b)
    layer = _layers(above, below)
    alone = [i for i in range(count) if not above[i] and not below[i]]
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for i, n in enumerate(layer):
        if above[i] or below[i]:
            rows[n].append(i)
    rows = [row for row in rows if row]
    rows += _wrapped(alone, widths, max((_width(row, widths) for row in rows), default=0.0))
    for n, row in enumerate(rows):
        for i in row:
            layer[i] = n
    x = [0.0] * count
    for row in rows:
        _spread(row, widths, x, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else reversed(rows):
            wanted = [sum(x[j] for j in near[i]) / len(near[i]) if near[i] else x[i] for i in row]
            order = sorted(range(len(row)), key=lambda k: (wanted[k], row[k]))
            row[:] = [row[k] for k in order]
            _spread(row, widths, x, [wanted[k] for k in order])
    left = min((x[i] - widths[i] / 2 for i in range(count)), default=0.0)
    right = max((x[i] + widths[i] / 2 for i in range(count)), default=0.0)
    return Drawing(
        [v - left for v in x],
        [(n + 0.5) * height for n in layer],
        right - left,
        len(rows) * height,
    )


def _width(row: Sequence[int], widths: Sequence[float]) -> float:
    return sum(widths[i] + _GAP for i in row)


def _wrapped(nodes: list[int], widths: Sequence[float], width: float) -> list[list[int]]:
    """Nodes without edges, in rows as wide as the rest of the drawing."""
    rows: list[list[int]] = []
    for i in nodes:
        if not rows or _width([*rows[-1], i], widths) > max(width, _LEAST_WIDTH):
            rows.append([])
        rows[-1].append(i)
    return rows


def _layers(above: list[list[int]], below: list[list[int]]) -> list[int]:
    """The layer of each node, from the top. Nodes without operands are directly above their first reader."""
    layer = [0] * len(above)
    for i, before in enumerate(above):
        layer[i] = 1 + max((layer[j] for j in before), default=-1)
    for i in reversed(range(len(above))):
        if not above[i] and below[i]:
            layer[i] = min(layer[j] for j in below[i]) - 1
    return layer


def _spread(row: list[int], widths: Sequence[float], x: list[float], wanted: list[float]) -> None:
    """Place the nodes of a row as close to their wanted positions as possible, in order and without overlap.

    Neighbours that would overlap form a block, which is placed at the mean of their wanted positions.
    """
    blocks: list[tuple[float, float, list[int]]] = []  # (left end, width, nodes)
    for i, wish in zip(row, wanted):
        left, width, members = wish - widths[i] / 2, widths[i] + _GAP, [i]
        weight_left = left
        while blocks and blocks[-1][0] + blocks[-1][1] > weight_left:
            other_left, other_width, others = blocks.pop()
            total = len(others) + len(members)
            weight_left = (
                other_left * len(others) + (weight_left - other_width) * len(members)
            ) / total
            members = others + members
            width += other_width
        blocks.append((weight_left, width, members))
    for left, _, members in blocks:
        at = left
        for i in members:
            x[i] = at + widths[i] / 2
            at += widths[i] + _GAP

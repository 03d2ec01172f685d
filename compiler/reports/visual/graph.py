"""A function as a page of collapsible modules: `gflow-opt --view-graph FILE.html`, `graph.explain().html(path)`.

A box is an op or a closed module; an open module is a frame around its contents. The page opens as many modules as fit
the window and lays out only visible boxes, so programs of 20,000 ops stay responsive. Colours show time, bytes, phase,
who runs an op (gflow, ATen, an engine), recomputation or sharding, with a legend. A click shows an op's source line,
costs and IR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from textwrap import indent

from gflow.dialects.assembly.printer import to_assembly
from gflow.dialects.distribution.mesh import SHARDING
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS

from ...ir import cost as costs
from ...ir.dynamic_sizes import sized
from ...ir.tables import time_text
from ...targets import DEVICES, Device
from .dataflow import Node, nodes_of
from .page import byte_text, fact, page

#: attribute of an op that recomputes an op of the forward
_RECOMPUTED = "gflow.recomputed"
#: attribute of an op: its selected kernel
_CHOSEN = "gflow.kernel"
#: who runs an op, by the number that the page uses
_KERNEL, _ATEN, _ENGINE, _COLLECTIVE, _VIEW, _INPUT = range(6)
#: the most characters of an op's IR
_MOST_IR = 4000
#: a line of a function's body at its outermost level that begins an op
_BEGINS = re.compile(r"    (?:%[^=]*= )?(?:gflow\.|\"gflow\.)(\w+)")
_COLOURS = (
    ("time", "time"),
    ("bytes", "bytes moved"),
    ("phase", "phase"),
    ("kind", "what runs it"),
    ("again", "recomputed"),
    ("sharding", "sharding"),
)


def graph_page(
    function: func.FuncOp, seconds: Mapping[int, float] | None = None, device: Device | None = None
) -> str:
    """The page for one function.

    Args:
        seconds: measured times, by the number of the op in the function; without them the page shows the least
            time that `device` (a cpu, if none is given) needs.
    """
    device = device or DEVICES["cpu"]
    nodes = nodes_of(function)
    texts = ops_as_text(function)
    tables = _Tables()
    with sized(function.operation):
        rows = [_row(node, tables, texts, seconds, device) for node in nodes]
    measured = seconds is not None
    total = sum(row[7] for row in rows) / 1e6
    what = "steps, measured" if measured else f"least time on {device.name}"
    name = ir.StringAttr(function.attributes["sym_name"]).value
    header = "".join(
        [
            fact("ops", f"{len(nodes):,}"),
            fact(what, time_text(total)),
            fact("bytes moved", byte_text(sum(row[8] for row in rows))),
            f'<label>colour <select id="colour">{_options()}</select></label>',
            '<input id="find" type="search" placeholder="op, module, file" aria-label="find">',
            '<span id="hits" class="soft" role="status"></span>',
            '<button id="fit">fit</button><button id="more">open all</button>'
            '<button id="less">close all</button>',
            '<button id="help" aria-label="keys">?</button>',
        ]
    )
    body = (
        f'<svg id="graph" role="application" tabindex="0" aria-label="{escape(name)}: graph"></svg>'
        '<div id="legend"></div><aside id="details" hidden></aside>'
    )
    data = {
        "nodes": rows,
        "paths": list(tables.paths),
        "places": list(tables.places),
        "shardings": list(tables.shardings),
        "measured": measured,
    }
    return page(f"{name}: graph", "graph", header, body, data, ["graph_tree", "graph_layout"])


def _options() -> str:
    return "".join(f'<option value="{value}">{name}</option>' for value, name in _COLOURS)


class _Tables:
    """Tables of texts that many ops share; rows refer to them by number."""

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.shardings: dict[str, int] = {}


def _row(
    node: Node,
    tables: _Tables,
    texts: Mapping[int, str],
    seconds: Mapping[int, float] | None,
    device: Device,
) -> list:
    """The row of a node in the page's data: label, path, type, source line, inputs, reads, outputs, microseconds,
    bytes, who runs it, whether it is recomputed, sharding, IR."""
    took, moved, again, sharding = 0.0, 0, False, ""
    if node.op is not None:
        cost = costs.cost_of(node.op.op)
        moved = cost.bytes
        if seconds is None:
            took = costs.seconds(cost, device)
        else:
            took = seconds.get(node.op.index, 0.0)
        attributes = node.op.op.attributes
        again = _RECOMPUTED in attributes
        sharding = str(attributes[SHARDING]) if SHARDING in attributes else ""
    return [
        node.label,
        tables.paths.setdefault(node.source.group.strip(":"), len(tables.paths)),
        node.type,
        tables.places.setdefault(node.source.place, len(tables.places)),
        node.inputs,
        node.reads,
        node.outputs,
        float(f"{took * 1e6:.4g}"),
        moved,
        _kind(node, moved),
        int(again),
        tables.shardings.setdefault(sharding, len(tables.shardings)),
        "" if node.op is None else texts.get(node.op.index, ""),
    ]


def _kind(node: Node, moved: int) -> int:
    if node.op is None:
        return _INPUT
    known = {"aten": _ATEN, "engine": _ENGINE}
    if node.kind in known:
        return known[node.kind]
    if _CHOSEN in node.op.op.attributes:
        chosen = ir.DictAttr(node.op.op.attributes[_CHOSEN])
        if "kind" in chosen and ir.StringAttr(chosen["kind"]).value == "pytorch":
            return _ATEN
    if node.kind in OPS and OPS[node.kind].category == "distribution":
        return _COLLECTIVE
    return _KERNEL if moved else _VIEW


def ops_as_text(function: func.FuncOp) -> dict[int, str]:
    """The assembly of each op of a function, by its number. The function is printed once: printing a single op numbers
    all values of the function, which takes quadratic time."""
    printed = indent(function.operation.get_asm(enable_debug_info=False), "  ")
    found: list[list[str]] = []
    for line in to_assembly(f"module {{\n{printed}\n}}").splitlines():
        if _BEGINS.match(line):
            found.append([])
        if found and line.startswith(("    return", "  }")):
            break
        if found:
            found[-1].append(line.removeprefix("    "))
    texts = ("\n".join(lines) for lines in found)
    return {i: t if len(t) <= _MOST_IR else f"{t[:_MOST_IR]}\n…" for i, t in enumerate(texts)}

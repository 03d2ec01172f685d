"""A function as text for Graphviz: `gflow-opt --emit=dot model.mlir | dot -Tsvg`."""

from __future__ import annotations

from gflow.dialects.mlir import func, ir

from .dataflow import Node, nodes_of
from .page import colour


def dot(function: func.FuncOp) -> str:
    """The function as one digraph. Each module is a cluster of its ops."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    nodes = nodes_of(function)
    groups: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        groups.setdefault(node.source.group.strip(":"), []).append(i)
    lines = [
        f"digraph {_quoted(name)} {{",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];',
        "  edge [color=gray40, fontsize=8];",
    ]
    for n, (group, members) in enumerate(groups.items()):
        if not group:
            lines += [f"  {_node(i, nodes[i])}" for i in members]
            continue
        lines += [
            f"  subgraph cluster_{n} {{",
            f'    label={_quoted(group)}; style=rounded; color="{_hex(colour(n))}";',
            *(f"    {_node(i, nodes[i])}" for i in members),
            "  }",
        ]
    for i, node in enumerate(nodes):
        lines += [f"  n{j} -> n{i} [label={_quoted(_short(nodes[j].type))}];" for j in node.inputs]
    return "\n".join([*lines, "}", ""])


def _node(i: int, node: Node) -> str:
    extra = ", shape=ellipse" if node.kind == "input" else ""
    tip = "\n".join(node.facts())
    text = "\n".join([node.label, *(f"-> {o}" for o in node.outputs)])
    return f"n{i} [label={_quoted(text)}, tooltip={_quoted(tip)}{extra}];"


def _short(ty: str) -> str:
    return ty.replace("tensor<", "").replace(">", "")


def _hex(hsl: str) -> str:
    """An `hsl(h s% l%)` colour as Graphviz writes colours."""
    # start-up of gflow-opt
    from colorsys import hls_to_rgb

    h, s, light = (float(part.rstrip("%")) for part in hsl[4:-1].split())
    red, green, blue = hls_to_rgb(h / 360, light / 100, s / 100)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

"""A function as a graph to draw: its ops, what flows between them, and their modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.compiler.ir.locations import Source, source_of
from gflow.compiler.ir.modules import text_of
from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.compiler.memory.planned import label
from gflow.dialects.mlir import func, ir

_ROLES_DRAWN = ("input",)


@dataclass
class Node:
    """An op, or an input of the program (its `op` is None). inputs: the numbers of the nodes that it reads, without
    repeats.

    reads: operands that are not drawn (parameters, state, constants). outputs: the names of the program's results
    that it computes.
    """

    label: str
    kind: str
    type: str
    source: Source
    inputs: list[int] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    op: Op | None = None

    def facts(self) -> list[str]:
        """The lines of text that describe the node."""
        lines = [self.type]
        group = self.source.group.strip(":")
        if group:
            lines.append(f"module {group}")
        if self.source.place:
            lines.append(self.source.place)
        if self.reads:
            lines.append("reads " + ", ".join(self.reads))
        if self.outputs:
            lines.append("gives " + ", ".join(self.outputs))
        return lines


def nodes_of(function: func.FuncOp) -> list[Node]:
    """The nodes of a function, in program order. Constants, parameters and state have none."""
    body = read_body(function)
    names, roles = _arguments(function, body)
    nodes: list[Node] = []
    node_of: dict[int, int] = {}
    for v, name, role in zip(body.arguments, names, roles):
        if role in _ROLES_DRAWN:
            node_of[v] = len(nodes)
            nodes.append(Node(name, role, str(body.types[v]), Source("", "", "", 0)))
    told = dict(zip(body.arguments, names))
    for o in body.ops:
        if o.name == "constant":
            told[o.results[0]] = f"constant {body.types[o.results[0]]}"
            continue
        node = Node(
            label(o), o.name, ", ".join(str(body.types[r]) for r in o.results), source_of(o.op),
            op=o,
        )  # fmt: skip
        for v in dict.fromkeys(o.operands):
            if v not in node_of:
                node.reads.append(told.get(v, "?"))
            elif node_of[v] not in node.inputs:
                node.inputs.append(node_of[v])
        for r in o.results:
            node_of[r] = len(nodes)
        nodes.append(node)
    for v, name in zip(body.returned, _results(function, len(body.returned))):
        if v in node_of:
            nodes[node_of[v]].outputs.append(name)
    return nodes


def _arguments(function: func.FuncOp, body: Body) -> tuple[list[str], list[str]]:
    given = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    names, roles = [], []
    for i in range(len(body.arguments)):
        attrs = given[i] if i < len(given) else {}
        names.append(text_of(attrs, "gflow.name", f"%arg{i}"))
        roles.append(text_of(attrs, "gflow.role", "input"))
    return names, roles


def _results(function: func.FuncOp, count: int) -> list[str]:
    stated = "res_attrs" in function.attributes
    given = list(ir.ArrayAttr(function.attributes["res_attrs"])) if stated else []
    return [
        text_of(ir.DictAttr(given[i]) if i < len(given) else {}, "gflow.name", f"result {i}")
        for i in range(count)
    ]

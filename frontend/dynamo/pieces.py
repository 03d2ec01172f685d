"""Partitions a graph that cannot be one program into programs with PyTorch's ops between them.

    add, mul, cond(…), tanh, nonzero(…), exp
        →  program(add, mul), cond through PyTorch, program(tanh), nonzero through PyTorch, program(exp)

Ops keep their order, so updates of inputs and random draws happen in the order of the graph. Graphs inside `cond`,
`while_loop`, `scan` and `map` are compiled as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from gflow.tracing.dispatch.failures.checks import QUANTIZING

from .trace_fx import saved_ones

Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any] | None]
"""Compiles a graph for example inputs; None for one that it cannot. What it gives takes a list of arguments."""

_BODIES = ("cond", "while_loop", "scan", "map_impl")
"""Higher-order ops that call the graphs among their arguments with tensors of the shapes in them."""

_WORTH = 2
"""The least number of ops that compute, for a program to be worth its call."""


@dataclass
class _Piece:
    """Adjacent nodes that become one program."""

    nodes: list[torch.fx.Node] = field(default_factory=list)

    def results(self) -> list[torch.fx.Node]:
        """The nodes that nodes outside of the piece read."""
        inside = set(self.nodes)
        return [n for n in self.nodes if any(u not in inside for u in n.users)]


class _Program(torch.nn.Module):
    """A compiled piece as a module, so that a graph can call it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any) -> Any:
        return tuple(self.run(list(args)))


def in_pieces(
    module: torch.fx.GraphModule, views: bool, compile: Compile
) -> tuple[torch.fx.GraphModule, list[str]] | None:
    """Compile the pieces of a graph that programs can hold.

    Args:
        views: whether outputs that share memory must still share it.
        compile: the compiler of a piece.

    Returns:
        The graph with its pieces compiled, and the names of the ops that run through PyTorch. None if no piece can be
            compiled,
        if `views` is set and outputs share memory, or if tensors are quantized.
    """
    if views and _outputs_share_memory(module):
        return None
    if any(n.target in QUANTIZING for n in module.graph.nodes):
        return None  # the graph does not say which tensors are quantized
    pieces = _divide(module)
    out = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    compiled = 0
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    starts = {piece.nodes[0]: piece for piece in pieces}
    inside = {n for piece in pieces for n in piece.nodes}
    left: list[str] = []
    for node in module.graph.nodes:
        piece = starts.get(node)
        program = _compiled_piece(module, piece, compile) if piece else None
        if piece and program:
            compiled += 1
            _call(out, f"piece_{compiled}", program, piece, copies)
        elif piece:  # its ops run through PyTorch
            inside.difference_update(piece.nodes)
        if node in inside:
            continue
        if node.op == "get_attr":
            _copy_attribute(module, out, str(node.target))
        elif node.op == "call_function" and node.target is not operator.getitem:
            if not _holds(node):
                left.append(_name(node.target))
            compiled += _compile_bodies(out, node, compile)
        copies[node] = out.graph.node_copy(node, copies.__getitem__)
    if not compiled:
        return None
    out.recompile()
    return out, sorted(set(left))


def _divide(module: torch.fx.GraphModule) -> list[_Piece]:
    """Maximal runs of nodes that programs can hold. A `getitem` belongs to the piece of its operand."""
    pieces: list[_Piece] = []
    of: dict[torch.fx.Node, _Piece] = {}
    current: _Piece | None = None
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.target is operator.getitem:
            source = of.get(node.args[0])
            if source is not None:
                source.nodes.append(node)
                of[node] = source
        elif _holds(node):
            if current is None:
                current = _Piece()
                pieces.append(current)
            current.nodes.append(node)
            of[node] = current
        else:
            current = None
    return [p for p in pieces if _worth(p.nodes)]


def _worth(nodes: Iterable[torch.fx.Node]) -> bool:
    ops = (n.target for n in nodes if isinstance(n.target, torch._ops.OpOverload))
    return sum(not op.is_view for op in ops) >= _WORTH


def _holds(node: torch.fx.Node) -> bool:
    """Whether an op can be in a program, judged by its schema and the types of its operands and results."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    given = node.meta.get("val")
    if isinstance(given, (list, tuple)) and any(
        u.target is not operator.getitem for u in node.users
    ):
        return False
    if isinstance(given, torch.SymInt):
        return False
    values = [a.meta.get("val") for a in node.all_input_nodes if a.op != "get_attr"]
    return all(map(_plain, _leaves([given, *values])))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _plain(value: Any) -> bool:
    """Whether a program can take or return a value: a dense tensor without data-dependent sizes, or a number."""
    if isinstance(value, torch.Tensor):
        return (
            type(value) in (FakeTensor, torch.Tensor, torch.nn.Parameter)
            and value.layout == torch.strided
            and value.device.type in ("cpu", "cuda")
            and not free_unbacked_symbols(value)
        )
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return isinstance(value, torch.SymInt) and not free_unbacked_symbols(value)
    return value is None or isinstance(value, (int, float, bool))


def _compiled_piece(
    module: torch.fx.GraphModule, piece: _Piece, compile: Compile
) -> Callable[..., Any] | None:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    outside = [n for n in _arguments(piece) if n.op != "get_attr"]
    for node in outside:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in piece.nodes:
        for source in node.all_input_nodes:
            if source not in copies:
                copies[source] = graph.node_copy(source)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in piece.results()))
    return compile(torch.fx.GraphModule(module, graph), [n.meta["val"] for n in outside])


def _arguments(piece: _Piece) -> list[torch.fx.Node]:
    """The nodes outside of a piece that it reads, in order, each once."""
    inside = set(piece.nodes)
    found = (a for n in piece.nodes for a in n.all_input_nodes if a not in inside)
    return list(dict.fromkeys(found))


def _call(
    out: torch.fx.GraphModule,
    name: str,
    program: Callable[..., Any],
    piece: _Piece,
    copies: dict[torch.fx.Node, torch.fx.Node],
) -> None:
    out.add_submodule(name, _Program(program))
    arguments = tuple(copies[n] for n in _arguments(piece) if n.op != "get_attr")
    called = out.graph.call_module(name, arguments)
    for index, node in enumerate(piece.results()):
        copies[node] = out.graph.call_function(operator.getitem, (called, index))


def _compile_bodies(out: torch.fx.GraphModule, node: torch.fx.Node, compile: Compile) -> int:
    """Compile the graphs that a higher-order op calls. Returns how many were compiled."""
    if getattr(node.target, "__name__", None) not in _BODIES:
        return 0
    count = 0
    for source in node.all_input_nodes:
        body = getattr(out, str(source.target), None) if source.op == "get_attr" else None
        if not isinstance(body, torch.fx.GraphModule):
            continue
        examples = [n.meta.get("val") for n in body.graph.nodes if n.op == "placeholder"]
        plain = all(map(_plain, _leaves(examples))) and _worth(body.graph.nodes)
        run = compile(body, examples) if plain else None
        if run is not None:
            setattr(out, str(source.target), _Program(run))
            count += 1
    return count


def _name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(target.__name__)


def _copy_attribute(module: torch.fx.GraphModule, out: torch.fx.GraphModule, name: str) -> None:
    value = operator.attrgetter(name)(module)
    *path, last = name.split(".")
    holder: torch.nn.Module = out
    for part in path:
        if not hasattr(holder, part):
            holder.add_module(part, torch.nn.Module())
        holder = getattr(holder, part)
    setattr(holder, last, value)


def _outputs_share_memory(module: torch.fx.GraphModule) -> bool:
    """Whether results, other than those that only the backward reads, are views of one tensor that is no argument."""
    output = next(iter(reversed(module.graph.nodes)))
    results = [o for o, saved in zip(output.args[0], saved_ones(output)) if not saved]
    nodes = dict.fromkeys(
        o for o in results if isinstance(o, torch.fx.Node) and o.op != "placeholder"
    )
    values = [n.meta.get("val") for n in nodes]
    memory = [
        v.untyped_storage()._cdata
        for v in values
        if isinstance(v, torch.Tensor) and v.layout == torch.strided
    ]
    return len(set(memory)) < len(memory)

"""Results that are views of updated arguments, in graphs with symbolic sizes: created after AOTAutograd's function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from .overlaps import storage_of
from .sizes import is_symbolic

_INTEGERS = (int, bool, float, torch.SymInt, torch.SymBool, torch.SymFloat, torch.Size)
#: augmented assignments (`x += y`), as functions
_AUGMENTED = {
    getattr(operator, f"i{name}")
    for name in (
        *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
}
#: methods that change a tensor's sizes or storage in place: calls after them cannot be repeated alone
_LAYOUT = {
    *("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"),
    *("set_", "resize_", "resize_as_"),
}


def with_views_outside(
    module: torch.fx.GraphModule, compile: Callable[[torch.fx.GraphModule], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo so that results which are views of updated arguments are created after the call,
    as in eager.

    AOTAutograd repeats the calls that created such a view if no number in them is symbolic. Otherwise it takes strides
    and offset from the result of the compiled graph, which is a view of the argument's new value and not of the
    argument. The view then begins where the argument's storage begins, and has the strides of a tensor without gaps
    (PyTorch 2.13: `aot_eager` and Inductor return the wrong elements).

    ```
    x.mul_(y); v = x[: x.shape[0] // 2]; return v, z      compiled: x.mul_(y); return z
                                                           after it: x[: x.shape[0] // 2]
    ```

    Args:
        compile: compiles the graph that remains.

    Returns:
        A function with the graph's arguments and results.
    """
    taken = _returned_views(module)
    if not taken:
        return compile(module)
    (output,) = module.graph.find_nodes(op="output")
    outs = output.args[0]
    views = _subgraph(module, taken)
    rest = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    rest.graph_copy(module.graph, copies)
    left = rest.output(tuple([copies.get(o, o) for o in outs if o not in taken]))
    left.meta.update(output.meta)
    run = compile(torch.fx.GraphModule(module, rest))
    places = [i for i, o in enumerate(outs) if o in taken]
    cut = [not outs[i].meta["example_value"].requires_grad for i in places]
    order = [taken.index(outs[i]) for i in places]

    def call(*args: Any) -> Any:
        results = list(run(*args))
        made = views(*args)
        for place, which, is_cut in zip(places, order, cut):
            view = made[which]  # detached where the graph's result requires no gradient
            results.insert(place, view.detach() if is_cut and view.requires_grad else view)
        return tuple(results)

    return call


def _returned_views(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The results that view calls and numbers alone derive from updated arguments. Empty if no size is symbolic."""
    nodes = list(module.graph.nodes)
    arguments = [n for n in nodes if n.op == "placeholder"]
    symbolic = any(map(_is_symbolic, (n.meta.get("example_value") for n in arguments)))
    if not symbolic or any(n.op == "call_method" and n.target in _LAYOUT for n in nodes):
        return []
    owned = {storage_of(n.meta.get("example_value")) for n in arguments} - {None}
    written = {
        storage_of(n.meta.get("example_value")) for n in map(_written, nodes) if n is not None
    }
    (output,) = module.graph.find_nodes(op="output")
    found = []
    for out in dict.fromkeys(output.all_input_nodes):
        place = storage_of(out.meta.get("example_value"))
        if place not in owned or place not in written or _origin(out).op == "placeholder":
            continue
        if all(_may_be_repeated(n, place) for n in _ancestors(out)):
            found.append(out)
    return found


def _subgraph(module: torch.fx.GraphModule, wanted: list[torch.fx.Node]) -> torch.fx.GraphModule:
    """A graph of the calls that compute `wanted` from a graph's arguments."""
    needed = {n for out in wanted for n in _ancestors(out)}
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(node.name)
        elif node in needed:
            copies[node] = graph.node_copy(node, lambda n: copies[_origin(n)])
    graph.output(tuple(copies[_origin(n)] for n in wanted))
    return torch.fx.GraphModule(module, graph)


def _ancestors(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node and all nodes that it depends on. An update in place is replaced by the tensor that it updates."""
    todo, seen = [_origin(node)], set[torch.fx.Node]()
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            yield at
            todo += map(_origin, at.all_input_nodes)


def _origin(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor of which a node's result is the in-place update, through any number of updates; otherwise the node
    itself."""
    while (target := _written(node)) is not None and _is_same(node, target):
        node = target
    return node


def _written(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operand that a call updates in place, if there is one."""
    first = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if node.op == "call_method":
        name = str(node.target)
        in_place = name.endswith("_") and not name.endswith("__")
        return first if in_place or name in ("__setitem__", "__iadd__") else None
    if node.op != "call_function":
        return None
    out = node.kwargs.get("out")
    if isinstance(out, torch.fx.Node):
        return out
    name = getattr(node.target, "__name__", "")
    if node.target in _AUGMENTED or node.target is operator.setitem:
        return first
    schema = getattr(node.target, "_schema", None)
    in_place = schema.is_mutable if schema is not None else name.endswith("_") and name[:1] != "_"
    return first if in_place else None


def _may_be_repeated(node: torch.fx.Node, place: int | None) -> bool:
    """Whether a node may be called again after the graph: it is an argument, a number, or a view of the storage
    `place`."""
    if node.op == "placeholder":
        return True
    value = node.meta.get("example_value")
    parts: list[Any] = list(value) if isinstance(value, (tuple, list)) else [value]
    return all(
        isinstance(p, _INTEGERS)
        or (storage_of(p) == place is not None and not is_functorch_wrapped_tensor(p))
        for p in parts
    )


def _is_same(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    new, old = node.meta.get("example_value"), target.meta.get("example_value")
    return storage_of(new) is not None and storage_of(new) == storage_of(old)


def _is_symbolic(value: Any) -> bool:
    offset = value.storage_offset() if storage_of(value) is not None else 0
    return is_symbolic(value) or isinstance(offset, torch.SymInt)

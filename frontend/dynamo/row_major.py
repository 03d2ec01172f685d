"""Row-major operands for kernels that factor matrices, in graphs of TorchDynamo."""

from __future__ import annotations

from typing import Any

import torch

from gflow.tracing.dispatch.functions.networks import FACTORING

_METHODS = {f.__name__ for f in FACTORING if hasattr(torch.Tensor, f.__name__)}


def with_row_major_matrices(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph in which functions that factor a matrix get a row-major one; the same graph if there is no such
    function.

    PyTorch's kernels factor a row-major matrix transposed and other matrices as they are, and the backward makes the
    same distinction by the strides of the saved matrix. A saved matrix of a program is always row-major, so the
    gradient of `det(x.t())` would be transposed (`tracing/dispatch/functions/networks.py` does the same for
    `build()`).

    ```
    %d = torch.linalg.det(%x)      →      %m = %x.contiguous(); %d = torch.linalg.det(%m)
    ```
    """
    if not any(map(_factors, module.graph.nodes)):
        return module
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    out = graph.graph_copy(module.graph, copies)
    graph.output(out)
    for node in list(graph.nodes):
        if not _factors(node):
            continue
        name = next((n for n in ("A", "input") if n in node.kwargs), None)
        matrix: Any = node.args[0] if name is None else node.kwargs[name]
        with graph.inserting_before(node):
            dense = graph.call_method("contiguous", (matrix,))
        dense.meta.update(matrix.meta)
        if name is None:
            node.args = (dense, *node.args[1:])
        else:
            node.kwargs = {**node.kwargs, name: dense}
    return torch.fx.GraphModule(module, graph)


def _factors(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and node.target in FACTORING

"""Updates of 0-d float64 tensors on the CPU, which TorchDynamo takes for Python numbers and may drop.

TorchDynamo passes a Python float as a 0-d float64 tensor that a symbol stands for, and gives such a symbol to a tensor
of the author's, too. Where AOTAutograd finds no use of a symbol (`torch/fx/passes/_tensorify_python_scalars.py`),
TorchDynamo starts again, and removes the nodes that show the symbol's tensor
(`OutputGraph.remove_tensorify_specialized_graphargs`): the input, and also `x.add_(1)`, which gives that tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor

from gflow.tracing.dispatch.functions.overlaps import Unwritable


@contextlib.contextmanager
def scalar_updates_kept(module: torch.fx.GraphModule) -> Iterator[None]:
    """While AOTAutograd compiles a graph, the symbols of its tensors pass for constants: nothing starts again for them.

    Raises:
        Unwritable: another number of the graph will make TorchDynamo start again all the same.
    """
    updated: list[torch.fx.Node] = []
    tensors: set[str] = set()
    numbers: set[str] = set()
    for node in module.graph.nodes:
        symbol = _symbol(node.meta.get("example_value"))
        if symbol is None:
            continue
        if node.op != "placeholder":
            updated.append(node)
        elif any(user.target == "item" for user in node.users):
            numbers.add(symbol)
        else:
            tensors.add(symbol)
    if updated and numbers - TensorifyState.force_specializations:
        raise Unwritable(
            f"{updated[0].target} changes a 0-d float64 tensor in place, which TorchDynamo drops beside Python numbers "
            f"that change from call to call{_line(updated[0])}. Give the tensor a dimension, x.reshape(1), or another "
            "dtype, or make the numbers constants."
        )
    new = tensors - TensorifyState.force_specializations
    TensorifyState.force_specializations |= new
    try:
        yield
    finally:
        TensorifyState.force_specializations -= new


def _symbol(value: Any) -> str | None:
    """The name of the symbol that stands for the number in a 0-d float64 tensor."""
    if not isinstance(value, FakeTensor) or value.dtype != torch.float64 or value.dim():
        return None
    memo = value.item_memo
    return getattr(memo.node._expr, "name", None) if isinstance(memo, torch.SymFloat) else None


def _line(node: torch.fx.Node) -> str:
    lines = [
        s.strip() for s in (node.stack_trace or "").splitlines() if s.strip().startswith("File")
    ]
    return f" ({lines[-1]})" if lines else ""

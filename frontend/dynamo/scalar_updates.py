"""Python floats and 0-d float64 tensors on the CPU, which TorchDynamo takes for one another.

TorchDynamo passes a Python float as a 0-d float64 tensor with a symbol for its value, and also gives 0-d float64
tensors of the author's such a symbol. If AOTAutograd finds no use of a symbol
(`torch/fx/passes/_tensorify_python_scalars.py`), TorchDynamo traces again, and removes the nodes whose result has the
symbol (`OutputGraph.remove_tensorify_specialized_graphargs`): the input, and also `x.add_(1)`, which returns that
tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._sympy.interp import handlers
from torch.utils._sympy.reference import TensorReferenceAnalysis

from gflow.tracing.dispatch.functions.overlaps import Unwritable


@contextlib.contextmanager
def scalar_updates_kept(module: torch.fx.GraphModule) -> Iterator[None]:
    """While AOTAutograd compiles a graph, mark the symbols of its tensors as specialized, so that TorchDynamo does not
    trace again for them.

    Raises:
        Unwritable: the graph updates such a tensor, and TorchDynamo will trace again because of a Python number of the
            graph.
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


@contextlib.contextmanager
def remainders_specialized() -> Iterator[None]:
    """While AOTAutograd compiles a graph, let it specialize a Python float that is combined with `(-n) % 8`.

    It computes with such floats as tensors, specializes those for which a function is not implemented, and fails with
    an AttributeError for functions of symbols that it has no name for (PyTorch 2.13: `x * s * (-n % 8)` fails with
    `aot_eager` and Inductor as well).
    """
    missing = set(handlers().values()) - set(dir(TensorReferenceAnalysis))
    for name in missing:
        setattr(TensorReferenceAnalysis, name, staticmethod(_not_implemented))
    try:
        yield
    finally:
        for name in missing:
            delattr(TensorReferenceAnalysis, name)


def _not_implemented(*args: Any) -> Any:
    raise NotImplementedError


def _symbol(value: Any) -> str | None:
    """The name of the symbol that represents the value of a 0-d float64 tensor; None if there is none."""
    if not isinstance(value, FakeTensor) or value.dtype != torch.float64 or value.dim():
        return None
    memo = value.item_memo
    return getattr(memo.node._expr, "name", None) if isinstance(memo, torch.SymFloat) else None


def _line(node: torch.fx.Node) -> str:
    lines = [
        s.strip() for s in (node.stack_trace or "").splitlines() if s.strip().startswith("File")
    ]
    return f" ({lines[-1]})" if lines else ""

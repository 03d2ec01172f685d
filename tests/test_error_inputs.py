"""Calls of PyTorch's own that eager refuses (`OpInfo.error_inputs`) are errors in gflow: a few ops, and all in the
sweep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from error_inputs import FRONTENDS, error_calls, missed
from op_db_harness import all_ops, op_name

import gflow as flow

Tensor = torch.Tensor

FEW = (
    "as_strided_scatter", "bucketize", "complex", "gather", "index_add", "multinomial", "scatter",
    "nn.functional.embedding", "uniform",
)  # fmt: skip
#: (op, frontend) → why a call is no error
COMPUTED = {
    **{
        (name, "backend"): "TorchDynamo takes the number's own operator, where eager refuses an int"
        for name in ("__radd__", "__rand__", "__rmul__", "__ror__", "__rxor__")
    },
    **{
        (name, "backend"): "AOTAutograd drops a call that may refuse values, where nothing reads it"
        for name in ("gather", "multinomial", "scatter", "scatter_add", "scatter_reduce")
    },
    ("cat", "backend"): "what out= shares memory with is looked at in graphs alone",
}
_WITH_ERRORS = [o for o in all_ops() if o.error_inputs_func]


def _problems(op: Any, frontend: str) -> list[str]:
    found = []
    for n, (call, tensors) in enumerate(error_calls(op)):
        for read in (True, False):
            problem = missed(call, tensors, frontend, read)
            if problem:
                found.append(f"{n}, {'read' if read else 'not read'}: {problem}")
    return found


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    assert not _problems(next(o for o in all_ops() if op_name(o) == name), "graph")


@pytest.mark.sweep
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("op", _WITH_ERRORS, ids=op_name)
def test_all(op: Any, frontend: str) -> None:
    if (op_name(op), frontend) not in COMPUTED:
        assert not _problems(op, frontend)


@pytest.mark.parametrize("frontend", ["graph", "backend"])
def test_out_of_another_dtype(frontend: str) -> None:
    """Kernels that convert nothing refuse it, where PyTorch's functionalization converts; others convert."""

    def mean(x: Tensor, out: Tensor) -> Tensor:
        return torch.mean(x, 0, out=out) + 1

    def greatest(x: Tensor, out: Tensor) -> Tensor:
        torch.amax(x, 0, out=out)
        return x + 1

    def both(x: Tensor, out: Tensor) -> Tensor:
        torch.max(x, 0, out=(out, torch.zeros(3, dtype=torch.int64)))
        return x + 1

    x, out = torch.rand(2, 3), torch.zeros(3, dtype=torch.float64)
    torch._dynamo.reset()
    compiled = FRONTENDS[frontend]
    assert torch.equal(compiled(mean)(x, out), mean(x, out.clone()))
    for function in (greatest, both):
        with pytest.raises(RuntimeError):
            function(x, out.clone())
        with pytest.raises(
            (flow.GraphError, RuntimeError), match=r"converts nothing|out tensor to have dtype"
        ):
            compiled(function)(x, out)

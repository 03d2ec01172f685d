"""PyTorch's reference inputs and its samples of modules, beside eager: a few, and all in the sweep."""

from __future__ import annotations

from typing import Any

import module_db
import pytest
import torch
from op_db_harness import all_ops, op_name
from op_db_references import FRONTENDS, problems, spread, supporting

FEW = ("add", "amax", "where", "nn.functional.interpolate.nearest")
#: module → why the graph refuses it
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def _wrong(op: Any, dtype: torch.dtype, count: int, frontend: str) -> list[str]:
    grad = (dtype.is_floating_point or dtype.is_complex) and dtype in op.supported_backward_dtypes(
        "cpu"
    )
    cases = spread(op, dtype, op.supports_autograd and grad, count)
    found = problems(op, cases, frontend) if cases else []
    return [str(p) for p in found if p.status != "refused"]


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("frontend", ["graph", "backend"])
def test_a_few(name: str, frontend: str) -> None:
    op = next(o for o in all_ops() if op_name(o) == name)
    assert not _wrong(op, torch.float32, 3, frontend)


@pytest.mark.sweep
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all(dtype: torch.dtype, frontend: str) -> None:
    found = [
        text for op in supporting(all_ops(), dtype) for text in _wrong(op, dtype, 12, frontend)
    ]
    assert not found, "\n".join(found)


@pytest.mark.sweep
@pytest.mark.parametrize("frontend", module_db.FRONTENDS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", sorted(module_db.MODULES))
def test_modules(name: str, training: bool, frontend: str) -> None:
    found = [
        f"{sample.text}: {text}"
        for sample in module_db.samples(module_db.MODULES[name], training)
        if (text := module_db.problem(sample, frontend)) and not text.startswith("refused")
    ]
    assert not found, "\n".join(found)

"""op_db with other layouts, shared memory, in place and by `out=`, beside eager: a few ops, and all in the sweep."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from op_db_harness import all_ops, op_name, samples
from op_variants import FRONTENDS, compare, drawn, variant_of

#: ops for the fast share: kernels, views, accumulation and calls of PyTorch
FEW = (
    "add", "cumsum", "index_put", "linalg.matrix_rank", "masked_scatter", "nn.functional.embedding_bag",
    "scatter_reduce.amin", "scatter_reduce.mean", "softmax", "sort",
)  # fmt: skip
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)


def _problems(
    name: str, dtype: torch.dtype, count: int, frontends: Sequence[str] = ("graph", "compile")
) -> list[str]:
    op = next(o for o in all_ops() if op_name(o) == name)
    if dtype not in op.supported_dtypes("cpu"):
        return []
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    found, rng = [], random.Random(f"{name} {dtype}")
    given = list(samples(op, dtype, grad, 4))
    for _ in range(count if given else 0):
        sample, kind, layout, frontend = drawn(rng, op, given, frontends)
        variant = variant_of(op, sample, kind, layout)
        problem = "" if variant is None else compare(op, variant, frontend)
        if problem:
            found.append(f"{kind}, {layout}, {frontend}: {problem}")
    return found


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    assert not _problems(name, torch.float32, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [op_name(o) for o in all_ops()])
def test_all(name: str, dtype: torch.dtype, frontend: str) -> None:
    torch._dynamo.reset()
    assert not _problems(name, dtype, 4, [frontend])

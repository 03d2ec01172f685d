"""gflow.take on the CPU: slices read at indices, by its kernel and by PyTorch's."""

from __future__ import annotations

import pytest
import torch
from test_triton_indexing import op

import gflow as flow
from gflow.compiler import compile_module
from gflow.compiler.driver.compile import CompileOptions
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import KernelStep
from gflow.runtime import Executable

Tensor = torch.Tensor

KINDS = {
    "f32": torch.float32, "bf16": torch.bfloat16, "i1": torch.bool, "i64": torch.int64, "ui8": torch.uint8,
    "i32": torch.int32, "complex<f64>": torch.complex128,
}  # fmt: skip

#: shape, index, dim, element types of both, whether it is the kernel's
CASES = [
    ((50, 40), (7,), 0, "f32", "i64", True), ((50, 40), (2, 3), 0, "bf16", "i32", True),
    ((3, 50, 17), (2, 5), 1, "i64", "i64", True), ((3, 4, 50), (60,), 2, "f32", "i64", True),
    ((9,), (), 0, "f32", "i64", True), ((4, 6), (), 1, "i1", "i64", True), ((4, 6), (0,), 0, "f32", "i64", True),
    ((300,), (5000,), 0, "f32", "i64", False), ((3000, 64), (2000,), 0, "ui8", "i64", True),
    ((5, 20), (4,), 0, "complex<f64>", "i64", False), ((4, 0), (3,), 0, "f32", "i64", True),
]  # fmt: skip


def _taken(x: Tensor, index: Tensor, dim: int) -> Tensor:
    found = x.index_select(dim, index.reshape(-1))
    return found.reshape((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))


@pytest.mark.parametrize(("shape", "index", "dim", "dtype", "wide", "own"), CASES)
def test_op(
    shape: tuple[int, ...], index: tuple[int, ...], dim: int, dtype: str, wide: str, own: bool
) -> None:
    """Values are those of PyTorch, bit by bit, with indices that repeat."""
    x, at = (
        torch.randn(shape).mul(90).to(KINDS[dtype]),
        torch.randint(shape[dim], index).to(KINDS[wide]),
    )
    types = ["x".join([*map(str, t.shape), d]) for t, d in ((x, dtype), (at, wide))]
    with make_context():
        module = ir.Module.parse(_function(types, op("take", dim=dim)))
        program = compile_module(module, CompileOptions())
    (found,) = Executable(program)([x, at])
    assert torch.equal(found, _taken(x, at, dim))
    assert all(isinstance(s, KernelStep) for s in program.steps) == own


def test_views() -> None:
    """Operands are read where they lie."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        x = builder.transpose(args[0], (2, 0, 1))
        attrs = {"starts": [1], "limits": [8], "strides": [2]}
        index = builder.build("slice", [args[1]], attrs)
        return [builder.build("take", [x, index], {"dim": 1})]

    x, at = torch.randn(3, 4, 5), torch.randint(3, (9,), dtype=torch.int32)
    with make_context():
        module = ir.Module.parse(_function(["3x4x5xf32", "9xi32"], body))
        program = compile_module(module, CompileOptions())
    (found,) = Executable(program)([x, at])
    assert torch.equal(found, _taken(x.permute(2, 0, 1), at[1:8:2], 1))


def test_embeddings_of_any_length() -> None:
    """A dynamic number of indices; an index out of range is the error that eager PyTorch has."""

    class Lookup(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(30, 48)

        def build(self, at: Tensor) -> Tensor:
            return self.table(at) * 2

    graph = Lookup()
    with torch.no_grad():
        for n in (3, 700, 1, 3):
            at = torch.randint(30, (2, n))
            flow.dynamic_dim(at, 1, min=1, max=1000)
            assert torch.equal(graph(at), graph.table(at) * 2)
        bad = torch.full((2, 3), 30)
        flow.dynamic_dim(bad, 1, min=1, max=1000)
        with pytest.raises(IndexError, match="out of range"):
            graph(bad)

"""Choices of kernels in the IR: what is edited is what runs, and what cannot run is an error at the op."""

from __future__ import annotations

import re

import pytest
import torch
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module, generate_planned
from gflow.compiler.driver.pass_manager import PipelineError
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

TEXT = """
  func.func @f(%x: tensor<96x80xf32>, %y: tensor<80x72xf32>, %s: tensor<24x48xf32>)
      -> (tensor<96x72xf32>, tensor<24xf32>) {
    %0 = "gflow.matmul"(%x, %y) : (tensor<96x80xf32>, tensor<80x72xf32>) -> tensor<96x72xf32>
    %1 = "gflow.reduce"(%s) {kind = "sum", dims = array<i64: 1>} : (tensor<24x48xf32>) -> tensor<24xf32>
    return %0, %1 : tensor<96x72xf32>, tensor<24xf32>
  }"""


def planned(target: str) -> str:
    """The module with its kernels selected and its memory planned."""
    with make_context():
        return compile_module(ir.Module.parse(TEXT), CompileOptions(target=target)).ir


@pytest.fixture(scope="module")
def text() -> str:
    return planned("cuda:90")


def edited(text: str, old: str, new: str) -> str:
    found, count = re.subn(old, new, text, count=1)
    assert count, text
    return found


TILE, BLOCK = r"tile = array<[^>]*>", r"block = array<[^>]*>"
PRODUCT, REGION = r'kind = "product"', r'kind = "region"'


def test_edited_choices_run(text: str) -> None:
    text = edited(text, TILE, "tile = array<i64: 32, 16, 32>")
    text = edited(text, BLOCK, "block = array<i64: 4, 64>")
    program = generate_planned(text, "cuda:90", 1)
    first = [k.configs[0] for k in program.triton.values()]
    assert {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32}.items() <= first[0].constants.items()
    assert first[1].constants == {"ROWS": 4, "COLS": 64}
    args = [torch.randn(96, 80), torch.randn(80, 72), torch.randn(24, 48)]
    got = run_program(program, [a.clone() for a in args])
    torch.testing.assert_close(got[0], args[0] @ args[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], args[2].sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (TILE, "tile = array<i64: 8, 16, 16>", "has a tile below"),
        (BLOCK, "block = array<i64: 4, 32>", "needs a block with rows of 48"),
        (BLOCK, "block = array<i64: 64>", "needs a block of 2 sizes"),
        (REGION, 'kind = "pytorch"', "is not for a region"),
        (REGION, 'kind = "none"', "leaves out an op"),
        (PRODUCT, 'kind = "zero"', "whose kind is product"),
        (PRODUCT, 'kind = "product", loads = "descriptors"', "loads by descriptors"),
    ],
)
def test_choices_that_code_cannot_follow(text: str, old: str, new: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        generate_planned(edited(text, old, new), "cuda:90", 1)


def test_another_target(text: str) -> None:
    with pytest.raises(
        Exception, match="selected for cuda:90, not cuda:80; run gflow-select-kernels"
    ):
        generate_planned(text, "cuda:80", 1)


def test_without_a_selection() -> None:
    pipeline = "builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-plan-memory))"
    with make_context():
        module = ir.Module.parse(TEXT)
        with pytest.raises(PipelineError, match="run gflow-select-kernels"):
            compile_module(module, CompileOptions(pipeline=pipeline))

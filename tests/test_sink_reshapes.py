"""gflow-sink-reshapes: same numbers, bit by bit, and kernels that reach over reshapes."""

from __future__ import annotations

import pytest
import torch
from ir_interpreter import run_module
from random_ir import random_args, random_module

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.passes.layout.sink_reshapes import joined_dims
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

SINK = "builtin.module(func.func(gflow-sink-reshapes,gflow-sink-concatenations))"

# ruff: noqa: E501
#: a block as a transformer has it: bias, activation, dropout, residual, norm, and bias gradient
BLOCK = """
func.func @f(%x: tensor<2x4x16xf32>, %w: tensor<16x16xf32>, %b: tensor<16xf32>, %rng: tensor<2xi64>)
    -> (tensor<2x4x16xf32>, tensor<16xf32>, tensor<2x4xf32>) {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.matmul"(%0, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %2 = "gflow.reshape"(%1) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.broadcast"(%b) {dims = array<i64: 2>, shape = array<i64: 2, 4, 16>} : (tensor<16xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.add"(%2, %3) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %5 = "gflow.tanh"(%4) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %6 = "gflow.random"(%rng) {dtype = "f32", kind = "uniform", shape = array<i64: 2, 4, 16>, stream = 3 : i64} : (tensor<2xi64>) -> tensor<2x4x16xf32>
  %c = "gflow.constant"() {value = dense<0.5> : tensor<2x4x16xf32>} : () -> tensor<2x4x16xf32>
  %7 = "gflow.compare"(%6, %c) {predicate = "lt"} : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xi1>
  %8 = "gflow.select"(%7, %5, %c) : (tensor<2x4x16xi1>, tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %9 = "gflow.add"(%8, %x) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %10 = "gflow.reduce"(%9) {dims = array<i64: 2>, kind = "max"} : (tensor<2x4x16xf32>) -> tensor<2x4xf32>
  %11 = "gflow.broadcast"(%10) {dims = array<i64: 0, 1>, shape = array<i64: 2, 4, 16>} : (tensor<2x4xf32>) -> tensor<2x4x16xf32>
  %12 = "gflow.sub"(%9, %11) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %13 = "gflow.reduce"(%12) {dims = array<i64: 0, 1>, kind = "sum"} : (tensor<2x4x16xf32>) -> tensor<16xf32>
  return %12, %13, %10 : tensor<2x4x16xf32>, tensor<16xf32>, tensor<2x4xf32>
}
"""


#: logits in three dimensions, their norm in two
LOGITS = """
func.func @f(%x: tensor<8x16xbf16>, %w: tensor<16x64xbf16>) -> tensor<8xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x16xbf16>, tensor<16x64xbf16>) -> tensor<8x64xbf16>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 4, 64>} : (tensor<8x64xbf16>) -> tensor<2x4x64xbf16>
  %2 = "gflow.convert"(%1) {dtype = "f32"} : (tensor<2x4x64xbf16>) -> tensor<2x4x64xf32>
  %3 = "gflow.reshape"(%2) {shape = array<i64: 8, 64>} : (tensor<2x4x64xf32>) -> tensor<8x64xf32>
  %4 = "gflow.reduce"(%3) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x64xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}
"""

#: the normalized sum of embeddings and positions, and what its gradient computes from it
NORM = """
func.func @f(%e: tensor<2x4x16xbf16>, %r: tensor<2x4xbf16>, %p: tensor<4x16xbf16>, %g: tensor<8x16xbf16>)
    -> (tensor<8x16xbf16>, tensor<2x4x16xbf16>) {
  %0 = "gflow.broadcast"(%p) {dims = array<i64: 1, 2>, shape = array<i64: 2, 4, 16>} : (tensor<4x16xbf16>) -> tensor<2x4x16xbf16>
  %1 = "gflow.add"(%e, %0) : (tensor<2x4x16xbf16>, tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  %2 = "gflow.exp"(%r) : (tensor<2x4xbf16>) -> tensor<2x4xbf16>
  %3 = "gflow.convert"(%2) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
  %4 = "gflow.broadcast"(%3) {dims = array<i64: 0, 1>, shape = array<i64: 2, 4, 16>} : (tensor<2x4xf32>) -> tensor<2x4x16xf32>
  %5 = "gflow.convert"(%1) {dtype = "f32"} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  %6 = "gflow.mul"(%5, %4) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %7 = "gflow.convert"(%6) {dtype = "bf16"} : (tensor<2x4x16xf32>) -> tensor<2x4x16xbf16>
  %8 = "gflow.reshape"(%g) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xbf16>) -> tensor<2x4x16xbf16>
  %9 = "gflow.convert"(%8) {dtype = "f32"} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  %10 = "gflow.neg"(%6) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %11 = "gflow.sub"(%9, %10) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %12 = "gflow.mul"(%11, %4) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %13 = "gflow.convert"(%12) {dtype = "bf16"} : (tensor<2x4x16xf32>) -> tensor<2x4x16xbf16>
  %14 = "gflow.reshape"(%13) {shape = array<i64: 8, 16>} : (tensor<2x4x16xbf16>) -> tensor<8x16xbf16>
  return %14, %7 : tensor<8x16xbf16>, tensor<2x4x16xbf16>
}
"""


def test_a_block_keeps_its_results() -> None:
    with make_context():
        module = ir.Module.parse(BLOCK)
        args = [torch.randn(2, 4, 16), torch.randn(16, 16), torch.randn(16), torch.tensor([7, 1])]
        expected = run_module(module, args)
        run_pipeline(module, SINK)
        for found, wanted in zip(run_module(module, args), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_normalized_value_is_computed_in_both_shapes() -> None:
    """The gradient of a norm over embeddings plus positions: nothing of it is stored in float32."""
    with make_context():
        module = ir.Module.parse(NORM)
        args = [torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 4).bfloat16()]
        args += [torch.randn(4, 16).bfloat16(), torch.randn(8, 16).bfloat16()]
        expected = run_module(module, args)
        run_pipeline(module, SINK)
        found = run_module(module, args)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))
    assert "-> tensor<2x4x16xf32>" not in str(module).split('"gflow.neg"')[1]


def test_halves_are_widened_where_they_are_read() -> None:
    with make_context():
        module = ir.Module.parse(LOGITS)
        run_pipeline(
            module, "builtin.module(func.func(gflow-sink-reshapes,gflow-simplify,cse,gflow-fuse))"
        )
        (function,) = module.body.operations
        ops = [op.operation for op in function.operation.regions[0].blocks[0].operations]
        assert [op.name for op in ops] == ["gflow.matmul", "gflow.fused", "func.return"]


def test_random_modules_keep_their_results() -> None:
    with make_context() as context:
        for seed in range(12):
            module = random_module(context, seed, 30 + seed)
            args = random_args(module, seed)
            expected = run_module(module, args)
            run_pipeline(module, SINK)
            for found, wanted in zip(run_module(module, args), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "split", "dims"),
    [
        ((8, 16), (2, 4, 16), ((0, 1), (2,))),
        ((8,), (2, 4, 1), ((0, 1, 2),)),
        ((8, 1), (2, 4, 1, 1), ((0, 1), (2, 3))),
        ((1, 8), (1, 2, 4), ((), (0, 1, 2))),
        ((4, 8), (2, 4, 4), None),
        ((8,), (2, 3), None),
        ((), (1, 1), None),
    ],
)
def test_joined_dims(shape: tuple[int, ...], split: tuple[int, ...], dims: object) -> None:
    assert joined_dims(shape, split) == dims

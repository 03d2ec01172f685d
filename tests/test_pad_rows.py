"""Rows of an odd length lie at multiples of a vector between kernels of a GPU: eager's numbers whatever stands behind
them, one place for what is overwritten, and nothing padded that something else reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ir_interpreter import run_module
from random_ir import random_args

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.emit.triton.accesses import accesses
from gflow.compiler.memory.plan_check import problems
from gflow.compiler.tools.opt import main
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program
from gflow.runtime import Executable
from gflow.runtime.cuda.fake import dry_run
from gflow.runtime.cuda.interpreter import InterpreterDevice, interpreting

X, W, V, Y = (
    "tensor<40x32xbf16>",
    "tensor<283x32xbf16>",
    "tensor<283x24xbf16>",
    "tensor<40x283xbf16>",
)

#: scores, softmax and its products with both sides, as a head of a network and its gradients have them
HEAD = f"""
func.func @head(%x: {X}, %w: {W}, %v: {V}) -> (tensor<40x24xbf16>, tensor<283x32xbf16>) {{
  %t = "gflow.transpose"(%w) {{permutation = array<i64: 1, 0>}} : ({W}) -> tensor<32x283xbf16>
  %0 = "gflow.matmul"(%x, %t) : ({X}, tensor<32x283xbf16>) -> {Y}
  %m = "gflow.reduce"(%0) {{kind = "max", dims = array<i64: 1>}} : ({Y}) -> tensor<40xbf16>
  %b = "gflow.broadcast"(%m) {{dims = array<i64: 0>, shape = array<i64: 40, 283>}} : (tensor<40xbf16>) -> {Y}
  %s = "gflow.sub"(%0, %b) : ({Y}, {Y}) -> {Y}
  %e = "gflow.exp"(%s) : ({Y}) -> {Y}
  %1 = "gflow.matmul"(%e, %v) : ({Y}, {V}) -> tensor<40x24xbf16>
  %et = "gflow.transpose"(%e) {{permutation = array<i64: 1, 0>}} : ({Y}) -> tensor<283x40xbf16>
  %2 = "gflow.matmul"(%et, %x) : (tensor<283x40xbf16>, {X}) -> tensor<283x32xbf16>
  return %1, %2 : tensor<40x24xbf16>, tensor<283x32xbf16>
}}"""

#: a product with what follows it, in three dimensions and in two, and sums of its columns
COLUMNS = """
func.func @columns(%x: tensor<4x10x32xf32>, %w: tensor<32x283xf32>, %b: tensor<283xf32>, %v: tensor<283x16xf32>)
    -> (tensor<283xf32>, tensor<40x16xf32>) {
  %f = "gflow.reshape"(%x) {shape = array<i64: 40, 32>} : (tensor<4x10x32xf32>) -> tensor<40x32xf32>
  %0 = "gflow.matmul"(%f, %w) : (tensor<40x32xf32>, tensor<32x283xf32>) -> tensor<40x283xf32>
  %c = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 40, 283>}
    : (tensor<283xf32>) -> tensor<40x283xf32>
  %1 = "gflow.add"(%0, %c) : (tensor<40x283xf32>, tensor<40x283xf32>) -> tensor<40x283xf32>
  %2 = "gflow.tanh"(%1) : (tensor<40x283xf32>) -> tensor<40x283xf32>
  %3 = "gflow.reshape"(%2) {shape = array<i64: 4, 10, 283>} : (tensor<40x283xf32>) -> tensor<4x10x283xf32>
  %4 = "gflow.reduce"(%3) {kind = "sum", dims = array<i64: 0, 1>} : (tensor<4x10x283xf32>) -> tensor<283xf32>
  %5 = "gflow.matmul"(%2, %v) : (tensor<40x283xf32>, tensor<283x16xf32>) -> tensor<40x16xf32>
  return %4, %5 : tensor<283xf32>, tensor<40x16xf32>
}"""

#: what another kernel reads, what is returned, and what is only computed element by element
DENSE = f"""
func.func @dense(%x: {X}, %w: tensor<32x283xbf16>, %z: {Y}) -> ({Y}, {Y}, {Y}) {{
  %0 = "gflow.matmul"(%x, %w) : ({X}, tensor<32x283xbf16>) -> {Y}
  %1 = "gflow.reverse"(%0) {{dims = array<i64: 1>}} : ({Y}) -> {Y}
  %2 = "gflow.matmul"(%x, %w) : ({X}, tensor<32x283xbf16>) -> {Y}
  %3 = "gflow.exp"(%z) : ({Y}) -> {Y}
  %4 = "gflow.reverse"(%3) {{dims = array<i64: 0>}} : ({Y}) -> {Y}
  return %1, %2, %4 : {Y}, {Y}, {Y}
}}"""


def run(program: Program, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results in an arena full of NaN."""
    executable = Executable(program, InterpreterDevice(), graphs=False)
    executable.arena.fill_(0xFF)
    with interpreting():
        return executable(args)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize(("text", "padded"), [(HEAD, 2), (COLUMNS, 1)])
def test_what_stands_behind_rows_does_not_matter(text: str, padded: int, target: str) -> None:
    with make_context():
        module = ir.Module.parse(text)
        torch.manual_seed(0)
        args = random_args(module)
        expected = run_module(module, args)
        program = compile_module(module, CompileOptions(target=target))
    assert program.ir.count("gflow.padded") == padded
    for found, want in zip(run(program, args), expected, strict=True):
        torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2 * float(want.abs().max()))
    assert dry_run(program, accesses(program), calls=2).runs == 2


def planned(text: str) -> ir.Module:
    module = ir.Module.parse(text)
    run_pipeline(module, pipeline_for("cuda:90"))
    return module


def test_a_padded_value_is_overwritten_where_it_lies() -> None:
    with make_context():
        module = planned(HEAD)
        (function,) = module.body.operations
        assert not list(problems(function))
        ops = [op.operation for op in function.operation.regions[0].blocks[0].operations]
        product, softmax = [op for op in ops if "gflow.padded" in op.attributes]
        assert product.attributes["gflow.buffers"] == softmax.attributes["gflow.buffers"]
        i64 = ir.IntegerType.get_signless(64)
        arena = ir.IntegerAttr(function.operation.attributes["gflow.arena_size"]).value
        assert arena >= 40 * 288 * 2
        function.operation.attributes["gflow.arena_size"] = ir.IntegerAttr.get(i64, 2 * arena)
        product.attributes["gflow.padded"] = ir.DenseI64ArrayAttr.get([304])
        assert any("overwrites" in text for text, _ in problems(function))


def test_what_others_read_stays_dense() -> None:
    with make_context():
        assert "gflow.padded" not in str(planned(DENSE))


@pytest.mark.parametrize("width", ["272", "281", "288, 0", "-16"])
def test_a_malformed_width_is_refused(
    width: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_context():
        text = str(planned(HEAD)).replace(
            "gflow.padded = array<i64: 288>", f"gflow.padded = array<i64: {width}>"
        )
    path = tmp_path / "f.mlir"
    path.write_text(text)
    assert main([str(path), "--pass-pipeline=builtin.module(func.func(gflow-verify-memory))"]) == 1
    assert "'gflow.padded' must be array<i64: …>" in capsys.readouterr().err


def test_a_processor_has_no_padded_rows() -> None:
    with make_context():
        module = planned(HEAD)
        with pytest.raises(PipelineError, match="is for kernels of GPUs"):
            run_pipeline(module, "builtin.module(func.func(gflow-select-kernels{target=cpu}))")

"""What a program for a GPU takes is what was planned, to the byte, on each target."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from benchmarks.workloads.cuda_steps import MODELS, Model, trace_of
from benchmarks.workloads.items import adamw
from benchmarks.workloads.networks import Decoder
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pipelines import PipelineOptions
from gflow.compiler.targets import CUDA_ARCHS
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program
from gflow.execution.executor import program_of

#: m, n, k: one whose operand is copied to be read in whole vectors on sm_90, one whose terms are split
PRODUCTS = {"padded copy": (8192, 50257, 768), "split-K": (256, 320, 65536)}


def check(program: Program) -> None:
    found = re.search(r"gflow.arena_size = (\d+)", program.ir)
    assert found is not None
    assert program.arena_bytes == int(found[1])


@pytest.mark.parametrize("arch", CUDA_ARCHS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, arch: int) -> None:
    m, n, k = PRODUCTS[name]
    a, b, c = f"tensor<{m}x{k}xbf16>", f"tensor<{k}x{n}xbf16>", f"tensor<{m}x{n}xbf16>"
    text = f"""
      func.func @f(%a: {a}, %b: {b}) -> {c} {{
        %0 = "gflow.matmul"(%a, %b) : ({a}, {b}) -> {c}
        return %0 : {c}
      }}"""
    with make_context():
        program = compile_module(ir.Module.parse(text), CompileOptions(target=f"cuda:{arch}"))
    assert program.arena_bytes or name == "padded copy"
    check(program)


def _trace(model: Model) -> Any:
    torch.manual_seed(0)
    return trace_of(model.graph(), model.inputs())


def test_training_step() -> None:
    def inputs() -> tuple[torch.Tensor, ...]:
        tokens = torch.randint(5003, (4, 257))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    model = Model(
        "decoder", "", lambda: Decoder(2, 256, 4, 5003, 256), inputs, adamw, torch.bfloat16
    )
    trace = _trace(model)
    for arch in (80, 90, 120):
        budgets = (0.0, 0.8) if arch == 90 else (0.0,)
        for passes in (PipelineOptions(memory_fraction=f) for f in budgets):
            check(program_of(trace, CompileOptions(target=f"cuda:{arch}", passes=passes)))


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_benchmarks(name: str) -> None:
    trace = _trace(MODELS[name])
    for arch in (80, 90, 120):
        check(program_of(trace, CompileOptions(target=f"cuda:{arch}")))

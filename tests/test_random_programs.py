"""Random programs through the whole compiler, against the interpreter."""

from __future__ import annotations

import pytest
import torch
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module
from random_strides import arguments_in, close, expected, memory_for, strided_module
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pipelines import DEFAULT_PIPELINES, PipelineOptions
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.runtime import Executable

CONTEXT = make_context()
#: without simplify, more of the generator's odd programs reach the code generator
AS_WRITTEN = (
    "builtin.module(func.func(gflow-fuse,gflow-schedule,gflow-materialize,"
    "gflow-select-kernels,gflow-plan-memory))"
)


@pytest.mark.parametrize("pipeline", [AS_WRITTEN, DEFAULT_PIPELINES["cpu"]])
@pytest.mark.parametrize("first_seed", [0, 1000])
def test_random_programs(pipeline: str, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 12):
        module = random_module(
            CONTEXT, seed, 30 + seed % 40, LARGE if seed % 2 else SMALL, updates=seed % 3 == 0
        )
        args = random_args(module, seed)
        want = run_module(module, [a.clone() for a in args])
        options = CompileOptions(threads=2, pipeline=pipeline)
        got = Executable(compile_module(module, options))([a.clone() for a in args])
        for n, (a, b) in enumerate(zip(got, want, strict=True)):
            note = f"seed {seed}, result {n}: {{}}"
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True, msg=note.format)


SWITCHES = {
    "default": PipelineOptions(),
    "multi-tensor": PipelineOptions(multi_tensor_update=True),
    "memory first": PipelineOptions(straighten="MemoryFirst"),
    "not compressed": PipelineOptions(compress_memory=False),
}


def check_strided(seed: int, options: PipelineOptions, target: str, large: bool) -> None:
    """Results, updated arguments, and all memory around arguments are what they should be."""
    module, layouts = strided_module(CONTEXT, seed, 4 + seed % 14, large)
    memory = memory_for(layouts, seed)
    wanted, after = expected(module, layouts, memory)
    program = compile_module(module, CompileOptions(threads=2, target=target, passes=options))
    args = arguments_in(layouts, memory)
    found = Executable(program)(args) if target == "cpu" else run_program(program, args)
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert close(a, b), f"seed {seed}, result {n}"
    for n, (a, b) in enumerate(zip(memory, after)):
        around = torch.ones_like(a, dtype=torch.bool)
        if n in layouts.update.values():
            around.as_strided(layouts.shapes[n], layouts.strides[n], layouts.offsets[n]).fill_(
                False
            )
            assert close(a, b), f"seed {seed}, argument {n}"
        assert torch.equal(a[around], b[around]), f"seed {seed}, memory of argument {n}"


@pytest.mark.parametrize("name", SWITCHES)
def test_arguments_in_any_layout(name: str) -> None:
    for seed in range(8):
        check_strided(100 * len(name) + seed, SWITCHES[name], "cpu", large=seed % 4 == 0)


@pytest.mark.parametrize("name", ["default", "multi-tensor"])
def test_arguments_in_any_layout_on_cuda(name: str) -> None:
    for seed in range(3):
        check_strided(200 * len(name) + seed, SWITCHES[name], "cuda:90", large=False)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
@pytest.mark.parametrize("name", SWITCHES)
def test_arguments_in_any_layout_at_length(name: str, target: str) -> None:
    for seed in range(2000, 2250 if target == "cpu" else 2060):
        check_strided(seed, SWITCHES[name], target, large=seed % 4 == 0)


def test_zeros_of_both_signs_in_one_kernel() -> None:
    t = "tensor<4xf32>"
    text = f"""
      func.func @f(%x: {t}) -> ({t}, {t}) {{
        %p = "gflow.constant"() {{value = dense<0.0> : {t}}} : () -> {t}
        %n = "gflow.constant"() {{value = dense<-0.0> : {t}}} : () -> {t}
        %0 = "gflow.copysign"(%x, %p) : ({t}, {t}) -> {t}
        %1 = "gflow.copysign"(%x, %n) : ({t}, {t}) -> {t}
        return %0, %1 : {t}, {t}
      }}"""
    with CONTEXT:
        module = ir.Module.parse(text)
    x = torch.ones(4)
    plus, minus = Executable(compile_module(module, CompileOptions(threads=1)))([x])
    assert torch.equal(plus, x)
    assert torch.equal(minus, -x)

"""Random programs through the whole compiler, against the interpreter."""

from __future__ import annotations

import pytest
import torch
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module

from gflow.compiler.compile import CompileOptions, compile_module
from gflow.compiler.pipeline import DEFAULT_PIPELINES
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.runtime import Executable

CONTEXT = make_context()
#: without simplify, more of the generator's odd programs reach the code generator
AS_WRITTEN = (
    "builtin.module(func.func(gflow-fuse,gflow-schedule,gflow-materialize,gflow-plan-memory))"
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

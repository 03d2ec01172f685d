"""Cases of `codegen_harness`, compiled for CUDA and run by Triton's interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from codegen_harness import PIPELINE, SELECT, Case, copies, difference
from ir_interpreter import run_module
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pipelines import PipelineOptions, build_pipeline
from gflow.compiler.targets import parse_target
from gflow.dialects.program import AtenStep, Program

TARGET = "cuda:90"


def pipeline_of(target: str) -> str:
    """The harness's pipeline with the fusion of a target, and kernels for it."""
    fuse = re.search(
        r"gflow-fuse(\{.*?\})?", build_pipeline(PipelineOptions(), parse_target(target))
    )
    assert fuse
    given = PIPELINE.replace("gflow-fuse", fuse[0])
    return given.replace(SELECT, f"gflow-select-kernels{{target={target}}}")


def compile_case(case: Case) -> Program:
    """The program of a case; its module becomes the planned one."""
    if case.program is None:
        options = CompileOptions(target=TARGET, pipeline=pipeline_of(TARGET))
        case.program = compile_module(case.module, options)
    return case.program


def run_cases(cases: Sequence[Case], native: bool = True) -> list[list[torch.Tensor]]:
    """Run every case, and compare with the reference interpreter.

    native: nothing may run through PyTorch.
    """
    failures: list[str] = []
    found = []
    for case in cases:
        want = run_module(case.module, copies(case.args))
        program = compile_case(case)
        if native and any(isinstance(s, AtenStep) for s in program.steps):
            failures.append(f"{case.name}: a step runs through PyTorch")
        args = copies(case.args)
        try:
            got = run_program(program, args)
        except RuntimeError as error:
            failures.append(f"{case.name}: {error}")
            continue
        for i, (given, now) in enumerate(zip(case.args, args)):
            changed = not torch.equal(given.nan_to_num(), now.nan_to_num())
            if changed and i not in case.alias.values():
                failures.append(f"{case.name}: argument {i} was changed")
        for n, w in enumerate(want):
            message = difference(case, n, got[n], w)
            if message:
                failures.append(message)
        found.append(got)
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:8])
    return found

"""The training steps that a GPU is measured on, at full size, without one: their launches keep all rules; in the
sweep their kernels compile, products of halves use tensor cores, and nothing spills that isn't listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.kernels import cubins
from benchmarks.workloads.cuda_steps import MODELS, trace_of
from gflow.compiler.emit.triton.accesses import accesses
from gflow.compiler.emit.triton.toolchain.device_code import add_device_code
from gflow.dialects.program import AtenStep, LaunchStep, Program
from gflow.execution.executor import program_of
from gflow.runtime.cuda.fake import dry_run

pytest.importorskip("triton")


def planned(name: str, target: str) -> Program:
    graph = MODELS[name].graph()
    options = replace(graph.config.resolved(), target=target, timing={})
    program: Program = program_of(trace_of(graph, MODELS[name].inputs()), options)
    return program


def checked(program: Program) -> None:
    """Compile its kernels, and dry-run it."""
    dry_run(program, accesses(program), calls=1)
    program.steps = [s for s in program.steps if isinstance(s, LaunchStep)]
    add_device_code(program)
    assert not cubins.problems(cubins.rows_of(program))


def test_launches_of_mobilenet_keep_all_rules() -> None:
    program = planned("mobilenet_v2_32", "cuda:90")
    assert not [s for s in program.steps if isinstance(s, AtenStep)]
    assert len(program.triton) < 140
    dry_run(program, accesses(program), calls=1)


@pytest.mark.sweep
@pytest.mark.parametrize("target", [*cubins.TARGETS, "hip:gfx942"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kernel(name: str, target: str) -> None:
    checked(planned(name, target))


def test_what_is_wrong_is_found() -> None:
    row: dict[str, Any] = {
        "kernel": "matmul_x", "of": "matmul", "spills": 0, "halves": True, "instructions": ["mma"],
    }  # fmt: skip
    assert not cubins.problems([row])
    assert "spills 8 bytes" in cubins.problems([{**row, "spills": 8}])[0]
    assert "no tensor-core" in cubins.problems([{**row, "instructions": []}])[0]


def test_json_has_a_kernel_on_a_line() -> None:
    rows = [{"kernel": "a", "config": {"COLS": 1}}, {"kernel": "b", "config": {}}]
    text = cubins.text_of({"models": [{"model": "m", "kernels": rows}]})
    assert '{"kernel": "a", "config": {"COLS": 1}}' in text.splitlines()[5]

"""The training steps that a GPU is measured on, at full size, without one: their launches keep all rules; in the
sweep their kernels compile, products of halves use tensor cores, nothing spills that isn't listed, and no kernel is
worse than `benchmarks/results/cubins.json` says; a few of them in each run."""

from __future__ import annotations

from collections import Counter
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


def checked(name: str, program: Program, most: int | None = None) -> None:
    """Compile its kernels, those of most launches alone if not all, and compare them with what was written down."""
    program.steps = [s for s in program.steps if isinstance(s, LaunchStep)]
    launches, arena = len(program.steps), program.arena_bytes
    some = {k for k, _ in Counter(s.kernel for s in program.steps).most_common(most)}
    program.steps = [s for s in program.steps if s.kernel in some]
    for kernel in {*program.triton} - some:
        del program.triton[kernel]
    add_device_code(program)
    rows = cubins.rows_of(program)
    assert not cubins.problems(rows)
    if known := cubins.recorded(name, program.target):
        assert not cubins.worse(rows, known["kernels"], some=most is not None)
        assert launches <= known["launches"]
        assert arena <= known["arena"]


@pytest.mark.sweep
def test_launches_of_mobilenet_keep_all_rules() -> None:
    program = planned("mobilenet_v2_32", "cuda:90")
    assert not [s for s in program.steps if isinstance(s, AtenStep)]
    assert len(program.triton) < 140
    dry_run(program, accesses(program), calls=1)
    checked("mobilenet_v2_32", program, most=4)


@pytest.mark.sweep
@pytest.mark.parametrize("target", [*cubins.TARGETS, "hip:gfx942"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kernel(name: str, target: str) -> None:
    program = planned(name, target)
    dry_run(program, accesses(program), calls=1)
    checked(name, program)


def test_what_is_wrong_is_found() -> None:
    row: dict[str, Any] = {
        "kernel": "matmul_x", "of": "matmul", "spills": 0, "halves": True, "instructions": ["mma"],
    }  # fmt: skip
    assert not cubins.problems([row])
    assert "spills 8 bytes" in cubins.problems([{**row, "spills": 8}])[0]
    assert "no tensor-core" in cubins.problems([{**row, "instructions": []}])[0]


ROW: dict[str, Any] = {
    "kernel": "matmul_add_12ab", "config": {"BLOCK_M": 128, "BLOCK_N": 64}, "spills": 0, "registers": 96, "narrow": 0,
    "cycles": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ""),
        ({"registers": 104, "cycles": 1019}, ""),
        ({"config": {"BLOCK_M": 128, "BLOCK_N": 128}, "cycles": 2000}, ""),
        ({"spills": 4}, "4 bytes that spill, 0 before"),
        ({"registers": 105}, "105 registers, 96 before"),
        ({"narrow": 2}, "2 bytes of narrow accesses, 0 before"),
        ({"cycles": 1021}, "1021 cycles"),
        ({"config": {"BLOCK_M": 64, "BLOCK_N": 64}, "cycles": 900}, "900 cycles"),
        ({"kernel": "matmul_mul_34cd"}, "is not in cubins.json"),
    ],
)
def test_what_became_worse_is_found(change: dict[str, Any], found: str) -> None:
    """Also of a kernel whose text has changed, which its ops tell; equal text comes first."""
    other = {**ROW, "kernel": "matmul_add_56ef", "registers": 255, "cycles": 9000, "narrow": 64}
    for digest in ("12ab", "78gh"):
        row = {**ROW, "kernel": f"matmul_add_{digest}", **change}
        problems = cubins.worse([other, row], [ROW, other])
        assert len(problems) == bool(found)
        assert found in "".join(problems)


def test_json_has_a_kernel_on_a_line() -> None:
    rows = [{"kernel": "a", "config": {"COLS": 1}}, {"kernel": "b", "config": {}}]
    text = cubins.text_of({"models": [{"model": "m", "kernels": rows}]})
    assert '{"kernel": "a", "config": {"COLS": 1}}' in text.splitlines()[5]

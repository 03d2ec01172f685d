"""The training steps that a GPU is measured on, at full size, without one.

No kernel is worse than `benchmarks/results/cubins.json` records: of two models in each run, and of all in the sweep.
There the launches keep all rules, too, products of halves use tensor cores, and nothing spills that isn't listed.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
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


def problems(name: str, program: Program) -> list[str]:
    """What has become worse of it; kernels that are recorded are not compiled."""
    known = cubins.recorded(name, program.target)
    assert known, (
        f"run python -m benchmarks cubins --models {name} --targets {program.target} --write"
    )
    return cubins.changed(program, known)


@pytest.mark.parametrize("name", ["mobilenet_v2_32", "llama"])
def test_no_kernel_is_worse_than_recorded(name: str) -> None:
    program = planned(name, "cuda:90")
    assert not [s for s in program.steps if isinstance(s, AtenStep)]
    assert not problems(name, program)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [*cubins.TARGETS, "hip:gfx942"])
def test_every_launch_keeps_all_rules(name: str, target: str) -> None:
    program = planned(name, target)
    dry_run(program, accesses(program), calls=1)
    if cubins.recorded(name, target):
        assert not problems(name, program)
        return
    add_device_code(program)
    assert not cubins.problems(cubins.rows_of(program))


def test_what_is_wrong_is_found() -> None:
    row: dict[str, Any] = {
        "kernel": "matmul_x", "of": "matmul", "spills": 0, "halves": True, "instructions": ["mma"],
    }  # fmt: skip
    assert not cubins.problems([row])
    assert "spills 8 bytes" in cubins.problems([{**row, "spills": 8}])[0]
    assert "no tensor-core" in cubins.problems([{**row, "instructions": []}])[0]


ROW: dict[str, Any] = {
    "kernel": "matmul_add_12ab", "config": {"BLOCK_M": 128, "BLOCK_N": 64}, "spills": 0, "registers": 96, "narrow": 0,
    "shared": 49152, "cycles": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ""),
        ({"registers": 104, "cycles": 1019}, ""),
        ({"config": {"BLOCK_M": 128, "BLOCK_N": 128}, "cycles": 2000, "shared": 65536}, ""),
        ({"spills": 4}, "4 spilled bytes, 0 before"),
        ({"registers": 105}, "105 registers, 96 before"),
        ({"shared": 49168}, "49168 bytes of shared memory, 49152 before"),
        ({"narrow": 2}, "2 bytes in narrow accesses, 0 before"),
        ({"cycles": 1021}, "1021 cycles"),
        ({"config": {"BLOCK_M": 64, "BLOCK_N": 64}, "cycles": 900}, "900 cycles"),
        ({"kernel": "matmul_mul_34cd"}, "is not in cubins.json"),
    ],
)
def test_what_became_worse_is_found(change: dict[str, Any], found: str) -> None:
    """The second kernel of the same ops is compared with the second one that is gone."""
    other = {**ROW, "kernel": "matmul_add_56ef", "registers": 255, "cycles": 9000, "narrow": 64}
    row = {**ROW, "kernel": "matmul_add_78gh", **change}
    problems = cubins.worse([other, row], [other, ROW])
    assert len(problems) == bool(found)
    assert found in "".join(problems)


def test_recorded_kernels_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed kernels are left out, and the numbers of launches are those of now."""
    monkeypatch.setattr(cubins, "_compile", lambda program: None)
    steps = [LaunchStep(kernel, (), 0, (1,), "") for kernel in ("a_1", "b_2", "a_1")]
    program = SimpleNamespace(steps=steps, triton={}, target="cuda:90")
    known = [{"kernel": name, "launches": 9} for name in ("gone_3", "b_2", "a_1")]
    rows = cubins.renewed(program, {"kernels": known})
    assert [(row["kernel"], row["launches"]) for row in rows] == [("a_1", 2), ("b_2", 1)]


def test_json_has_a_kernel_on_a_line() -> None:
    rows = [{"kernel": "a", "config": {"COLS": 1}}, {"kernel": "b", "config": {}}]
    text = cubins.text_of({"models": [{"model": "m", "kernels": rows}]})
    assert '{"kernel": "a", "config": {"COLS": 1}}' in text.splitlines()[5]

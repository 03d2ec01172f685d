"""Kernels limited to an instruction set: what a program depends on, so part of its keys; never ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gflow as flow
from gflow.dialects.program import processor
from gflow.runtime.cpu import jit, machine

LEVELS = [level for level, needed in processor.LEVELS.items() if needed <= processor.features()]

ROOT = Path(__file__).resolve().parent.parent

#: what limits the libraries that a program calls, beside its kernels
LIMITED = {
    processor.ISA: "x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2", "GFLOW_CACHE": "0",
}  # fmt: skip


def _program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w) * 2, 1).sum(0)


@pytest.mark.parametrize("level", LEVELS)
def test_limited(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 100), torch.randn(100, 70)
    before = flow.compile(_program)(x, w)
    known = set(jit._addresses)
    monkeypatch.setenv(processor.ISA, level)
    assert processor.usable() == processor.LEVELS[level]
    torch.testing.assert_close(flow.compile(_program)(x, w), before)
    new = set(jit._addresses) - known
    assert new
    assert {isa for isa, _ in new} == {level}, "kernels of another level were used again"


@pytest.mark.parametrize("level", LEVELS)
def test_rounding_to_bfloat16(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bfloat16 value, and numbers around the middle of two: subnormal numbers beside others, and infinities."""
    monkeypatch.setenv(processor.ISA, level)
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    order = torch.randperm(6 << 16, generator=torch.Generator().manual_seed(0))
    x = (halves[:, None] + low).flatten()[order].view(torch.float32)
    for y in (x, x[:77]):
        found, wanted = flow.compile(lambda y: y.bfloat16())(y), y.bfloat16()
        assert torch.equal(found.isnan(), wanted.isnan())
        numbers = ~wanted.isnan()
        assert torch.equal(found[numbers].view(torch.int16), wanted[numbers].view(torch.int16))


def test_keys_and_artifacts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    assert jit._cache_key({"k": "a"}, {}, "") != jit._cache_key({"k": "a"}, {}, "x86-64-v3")
    whole = machine.description("")
    if "x86-64-v3" not in LEVELS:
        pytest.skip("this processor has no AVX2")
    monkeypatch.setenv(processor.ISA, "x86-64-v3")
    limited = machine.description("")
    assert set(limited["features"]) < set(whole["features"])
    assert machine.runs(limited, "")
    assert not machine.runs(whole, ""), "code for more than the limit allows would run"
    monkeypatch.delenv(processor.ISA)
    assert machine.runs(limited, ""), "code for fewer instructions runs here"


def test_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.ISA, "avx9")
    with pytest.raises(ValueError, match=r"GFLOW_CPU_ISA='avx9': unknown; known: x86-64-v2"):
        flow.compile(_program)(torch.ones(2, 2), torch.ones(2, 2))
    monkeypatch.setenv(processor.ISA, "x86-64-v4")
    monkeypatch.setattr(processor, "features", lambda: processor.LEVELS["x86-64-v3"])
    with pytest.raises(ValueError, match="lacks avx512bw"):
        processor.limit()


@pytest.mark.slow
@pytest.mark.skipif("x86-64-v3" not in LEVELS, reason="this processor has no AVX2")
@pytest.mark.parametrize("files", [
    # one process: a start takes as long as many of the tests
    pytest.param(["special_values"], id="kernels"),
    pytest.param(["codegen_reductions", "epilogues", "vmath"], id="more", marks=pytest.mark.sweep),
])  # fmt: skip
def test_a_share_of_the_suite(files: list[str]) -> None:
    """With AVX2 alone, in kernels and in the libraries that programs call."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "not slow and not sweep",
        "-k",
        "not (test_like_eager and float64)",  # test_special_values has it
        *(f"tests/test_{name}.py" for name in files),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **LIMITED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]

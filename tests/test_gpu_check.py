"""The GPU check, as far as it goes without a GPU: it runs at tiny sizes, and it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import main, numerics, report, sanitizer

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*argv: str) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
        path = tmp_path / "found.json"
        status = main(["--stand-in", "--json", str(path), *argv])
        return status, json.loads(path.read_text()), path.with_suffix(".txt").read_text()

    return run


def test_runs_without_a_gpu(check: Any) -> None:
    only = "softmax float32,integers,training MLP,copy,relu(a * b + c) float32,matmul bf16"
    status, found, text = check(
        "--sections", "numerics,models,bandwidth,contractions", "--only", only
    )
    rows = [row for section in found["sections"].values() for row in section]
    assert status == 0, text
    assert [row["name"] for row in rows] == [
        "softmax float32", "integers int64", "training MLP", "copy", "relu(a * b + c) float32",
        "matmul bf16 17×33×20",
    ]  # fmt: skip
    assert all(row["ok"] for row in rows)
    assert "memory-bound kernels" in text
    assert "left_out" in found


def test_steps_of_models(check: Any) -> None:
    status, found, text = check("--sections", "steps", "--only", "convnet training")
    (row,) = found["sections"]["steps"]
    assert (status, row["ok"]) == (0, True), text
    assert set(row["ms"]) == {"gflow", "eager"}


def test_time_that_ran_out_is_told(check: Any) -> None:
    status, found, text = check("--sections", "numerics", "--only", "softmax", "--minutes", "0")
    assert status == 0
    assert found["sections"]["numerics"] == []
    assert "numerics softmax float32" in found["left_out"]
    assert "out of time: numerics softmax float32" in text


def test_wrong_results_fail(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = numerics.compare
    monkeypatch.setattr(
        numerics, "compare", lambda found, *rest: right([t * 1.001 for t in found], *rest)
    )
    status, _found, text = check("--sections", "numerics", "--only", "softmax float32")
    assert status == 1
    assert "MISSED        numerics" in text
    assert "softmax float32" in text


def test_compare() -> None:
    truth = torch.linspace(-1, 1, 100, dtype=torch.float64)
    eager = truth.float()
    assert numerics.compare([eager], [eager], [truth])["ok"]
    assert not numerics.compare([eager + 1e-5], [eager], [truth])["ok"]
    assert not numerics.compare([eager.half()], [eager], [truth])["ok"]
    assert not numerics.compare([eager[:50]], [eager], [truth])["ok"]
    nan = eager.clone()
    nan[3] = float("nan")
    assert not numerics.compare([nan], [eager], [truth])["ok"]
    assert numerics.compare([nan], [nan], [nan.double()])["ok"]
    count = torch.arange(5)
    assert not numerics.compare([count + 1], [count], [count])["ok"]


def test_bars() -> None:
    row = {"name": "gpt2 training", "ok": True, "ratio_to_max_autotune": 1.2,
           "peak_mib": {"gflow": 80.0, "max-autotune": 100.0}}  # fmt: skip
    slow = {**row, "name": "bert training", "ratio_to_max_autotune": 0.9}

    def of(rows: list[dict[str, Any]]) -> dict[str, bool | None]:
        found = report.bars({"sections": {"steps": rows}})
        return {bar.split(":")[0].split(" ")[0]: met for bar, met, _ in found}

    assert of([row])["training"] is True
    assert of([row, slow])["training"] is False
    assert of([row, {"name": "x training", "ok": False}])["training"] is False
    assert of([row])["peak"] is True
    assert of([row])["matmul"] is None


def test_sanitizer_output() -> None:
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.read("memcheck", clean) == {"ok": True, "errors": 0}
    bad = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 2 errors\n"
    assert sanitizer.read("memcheck", bad)["errors"] == 2
    assert sanitizer.read("memcheck", "no such device")["ok"] is None
    races = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    assert sanitizer.read("racecheck", races)["ok"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "PyTorch finds no GPU" in done.stderr

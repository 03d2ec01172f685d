"""The GPU check, as far as it goes without a GPU: it runs at tiny sizes, and it can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import carried, main, report, sanitizer
from benchmarks.gpu.main import parse
from benchmarks.gpu.rows import exactness, numerics
from benchmarks.gpu.setting import Setting
from gflow.dialects.program.form import packed
from gflow.runtime.stored import cache

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*argv: str, only: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
        path = tmp_path / "found.json"
        chosen = [part for name in only for part in ("--only", name)]
        status = main(["--stand-in", "--json", str(path), *argv, *chosen])
        return status, json.loads(path.read_text()), path.with_suffix(".txt").read_text()

    return run


def test_runs_without_a_gpu(check: Any) -> None:
    names = (
        "softmax float32",
        "integers",
        "training MLP",
        "copy",
        "relu(a * b + c) float32",
        "matmul bf16",
    )
    status, found, text = check(
        "--sections", "numerics,models,bandwidth,contractions", "--in-process", only=names
    )
    rows = {row["name"]: row for section in found["sections"].values() for row in section}
    assert status == 0, text
    assert list(rows) == [
        "softmax float32", "integers int64", "training MLP", "copy", "relu(a * b + c) float32",
        "matmul bf16 17×33×20",
    ]  # fmt: skip
    assert all(row["ok"] for row in rows.values())
    assert "memory-bound kernels" in text
    assert found["left_out"] == []
    # checked before it is timed, and what was timed is told
    product = rows["matmul bf16 17×33×20"]
    assert product["exact"] == rows["relu(a * b + c) float32"]["exact"] == "float64"
    assert product["error_gflow"] <= 2 * max(product["error_eager"], 4e-3)
    assert product["ran"]["kernels"] == product["own"]["ran"]["kernels"] == 1
    assert product["same_bits"]
    assert {"gflow", "own kernels", "cublas"} == set(product["ms"])
    tried = product["own"]["configurations"]
    assert len({c["config"] for c in tried}) == len(tried) > 1
    assert all(c["ok"] and c["ms"] > 0 for c in tried)


def test_rows_in_a_process_of_their_own(check: Any) -> None:
    status, found, text = check("--sections", "numerics", only=("integers",))
    assert status == 0, text
    assert [row["name"] for row in found["sections"]["numerics"]] == ["integers int64"]


@pytest.mark.sweep
def test_steps_of_models(check: Any) -> None:
    status, found, text = check("--sections", "steps", only=("convnet training",))
    (row,) = found["sections"]["steps"]
    assert (status, row["ok"]) == (0, True), text
    assert set(row["ms"]) == {"gflow", "eager"}
    assert row["exact"] == "float64"
    assert row["errors"]["gflow"] < 1e-5
    assert row["ran"]["gflow"]["kernels"] > 1
    assert len(row["losses"]["gflow"]) == 4


def test_time_that_ran_out_is_told(check: Any) -> None:
    status, found, text = check(
        "--sections", "numerics", "--minutes", "0", only=("softmax", "integers")
    )
    assert status == 0
    assert "numerics" not in found["sections"]
    assert "numerics softmax float32" in found["left_out"]
    assert "out of time: numerics softmax float32" in text


def test_wrong_results_fail(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = exactness.compare
    wrong = lambda found, *rest: right([t * 1.001 for t in found], *rest)  # noqa: E731
    monkeypatch.setattr(numerics, "compare", wrong)
    monkeypatch.setattr(exactness, "compare", wrong)
    status, _found, text = check(
        "--sections", "numerics,bandwidth", "--in-process",
        only=("numerics softmax float32", "relu(a * b + c) float32"),
    )  # fmt: skip
    assert status == 1
    assert "MISSED        numerics" in text
    assert "MISSED        what was timed" in text
    assert "softmax float32" in text


def test_the_sanitizer_s_families_are_there() -> None:
    """Each names a row: a name with a comma in it is one name."""
    setting = Setting(torch.device("cpu"), True)
    names = [name for name, _ in numerics.rows(setting)]
    for family in sanitizer.FAMILIES:
        assert any(family in name for name in names), family
    asked = parse(["--stand-in", *(p for f in sanitizer.FAMILIES for p in ("--only", f))])
    assert tuple(asked.only) == sanitizer.FAMILIES


def test_compare() -> None:
    truth = torch.linspace(-1, 1, 100, dtype=torch.float64)
    eager = truth.float()
    assert exactness.compare([eager], [eager], [truth])["ok"]
    assert not exactness.compare([eager + 1e-5], [eager], [truth])["ok"]
    assert not exactness.compare([eager.half()], [eager], [truth])["ok"]
    assert not exactness.compare([eager[:50]], [eager], [truth])["ok"]
    nan = eager.clone()
    nan[3] = float("nan")
    assert not exactness.compare([nan], [eager], [truth])["ok"]
    assert exactness.compare([nan], [nan], [nan.double()])["ok"]
    count = torch.arange(5)
    assert not exactness.compare([count + 1], [count], [count])["ok"]


def test_bars() -> None:
    row = {"name": "gpt2 training", "ok": True, "ratio_to_max_autotune": 1.2,
           "peak_reserved_mib": {"gflow": 80.0, "max-autotune": 100.0}, "ms": {"gflow": 1.0}}  # fmt: skip
    slow = {**row, "name": "bert training", "ratio_to_max_autotune": 0.9}

    def of(rows: list[dict[str, Any]]) -> dict[str, bool | None]:
        found = report.bars({"sections": {"steps": rows}})
        return {bar.split(":")[0].split(" ")[0]: met for bar, met, _ in found}

    assert of([row])["training"] is True
    assert of([row, slow])["training"] is False
    assert of([row, {"name": "x training", "ok": False}])["training"] is False
    assert of([{**row, "ratio_to_max_autotune": None}])["training"] is None
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


def test_the_script_says_which_python_it_tried(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu_check.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"python3 ({python})" in done.stderr
    assert "No module named 'torch'" in done.stderr


def test_the_script_writes_to_both_places(tmp_path: Path) -> None:
    """The whole way of `scripts/gpu_check.sh`, at a tiny size."""
    folders = {"GPU_CHECK_OUT": tmp_path / "out", "GPU_CHECK_RESULTS": tmp_path / "results",
               "GPU_CHECK_CACHE": tmp_path / "cache", "GPU_CHECK_CODE": tmp_path / "none"}  # fmt: skip
    options = ["--stand-in", "--call", "resnet", "--sections", "numerics", "--only", "integers"]
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu_check.sh"), *options],
        env={**os.environ, "GPU_CHECK_PYTHON": sys.executable, **{k: str(v) for k, v in folders.items()}},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [
        next(folders[name].glob("gpu_*_resnet.json"))
        for name in ("GPU_CHECK_OUT", "GPU_CHECK_RESULTS")
    ]
    assert found[0].read_text() == found[1].read_text()
    (row,) = json.loads(found[0].read_text())["sections"]["numerics"]
    assert row["ok"]
    assert found[0].with_suffix(".txt").read_text().startswith("Triton's interpreter")


def test_machine_code_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive's entries are there under another key; what came along is not packed again."""

    def machine(name: str) -> None:
        monkeypatch.setenv("GFLOW_CACHE", "1")
        monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path / name / "cache"))
        monkeypatch.setenv("GFLOW_KEY_FILE", str(tmp_path / name / "key" / "key"))

    one, other = "a" * 64, "b" * 64
    machine("here")
    code = json.dumps({"entry": "add", "image": packed(b"\x7fELF code")}).encode()
    cache.write("device_code", one, code)
    cache.write("programs", other, b"not portable")
    (archive,) = carried.pack(tmp_path / "out")
    machine("there")
    assert carried.unpack([archive]) == 1
    assert json.loads(cache.read("device_code", one) or b"") == json.loads(code)
    assert carried.count() == {"device_code": 1, "tuning": 0}
    assert carried.pack(tmp_path / "more") == []
    cache.write("tuning", other, b"{}")
    (archive,) = carried.pack(tmp_path / "more")
    machine("again")
    assert carried.unpack([archive]) == 1
    assert cache.read("tuning", other) == b"{}"

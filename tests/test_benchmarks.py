"""The benchmarks run, and their arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import break_even, engines, frozen
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.compile_time import planning
from benchmarks.compile_time.scaling import exponent, exponents
from benchmarks.harness import report
from benchmarks.harness.measure import add_ratios
from benchmarks.kernels import attention, linalg, products
from benchmarks.workloads import networks as models
from gflow.compiler.targets.processors import host_level
from gflow.runtime.engines.packages import available

ROOT = Path(__file__).resolve().parent.parent


def test_exponent_is_the_slope() -> None:
    assert exponent([1, 4, 16], [3, 12, 48]) == pytest.approx(1)
    assert exponent([1, 4, 16], [1, 16, 256]) == pytest.approx(2)
    points = [
        {"ops": size, "depth": 0, "seconds": 1.0 + size, "phases": {"trace": size**2, "load": 0.0}}
        for size in (6, 24, 96)
    ]
    found = exponents(points)
    assert found["trace"]["fit"] == pytest.approx(2)
    assert found["total"]["fit"] < found["total"]["last"] < 1  # the fixed second counts less
    assert "load" not in found


def test_ratios_and_marks() -> None:
    row = {
        "item": "x",
        "peers": {
            "eager": {"step_ms": 10.0, "peak_steady_mib": 8.0},
            "gflow": {"step_ms": 5.0, "peak_steady_mib": 4.0, "differences_to_eager": [0.5]},
            "compile": {},
        },
        "errors": {"compile": "steps: error: it broke"},
    }
    add_ratios(row)
    assert row["peers"]["gflow"]["step_ratio_to"] == {"eager": 0.5}
    assert row["peers"]["gflow"]["memory_ratio_to"] == {"eager": 0.5}
    text = report.render([row])
    assert "DIFFERS" in text
    assert "FAILED" in text
    assert "it broke" in text
    assert report.failed([row])
    assert "busy" not in text

    row["peers"]["eager"]["busy_ms"], row["peers"]["gflow"]["busy_ms"] = 16.0, 12.0
    add_ratios(row)
    busy = report.render([row]).split("busy:\n")[1].splitlines()[3].split()
    assert busy == ["x", "gflow", "12.0", "2.40", "0.75", "0.50", "-", "-"]


def test_break_even_counts_the_first_step() -> None:
    """After step n a peer has spent first + (n - 1) step seconds."""
    assert break_even.break_even(first=2.0, step=0.1, eager_first=0.2, eager_step=0.2) == 19
    assert break_even.break_even(first=0.1, step=0.3, eager_first=0.2, eager_step=0.2) == 1
    assert break_even.break_even(first=2.0, step=0.2, eager_first=0.2, eager_step=0.2) is None


def test_planning_is_the_same_for_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan of a rank of 1,024 has as many collectives as that of one of 8."""
    sizes = [
        "--layers",
        "1",
        "--width",
        "128",
        "--hidden",
        "128",
        "--vocabulary",
        "100",
        "--tokens",
        "64",
    ]
    assert planning.main([*sizes, "--ranks", "8,1024", "--stages", "3"]) == 0
    few, many = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert (few[2], many[2]) == ("8", "1024")
    assert int(few[-3]) == int(many[-3]) > 0, "collectives"


def test_models_have_their_published_sizes() -> None:
    """Parameters in millions as in the literature: ResNet-18 11.7, ResNet-50 25.6, MobileNetV2 3.5, R3D-18 33.4."""

    def parameters(model: torch.nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    from examples.mobilenet_v2 import MobileNetV2

    assert parameters(models.ResNet18()) == 11_689_512
    assert parameters(MobileNetV2()) == 3_504_872
    assert parameters(models.ResNet50()) == 25_557_032
    assert parameters(models.VideoResNet18()) == 33_371_472
    out = models.Decoder(2, 32, 2, 64, 16)(torch.zeros(2, 16, dtype=torch.long))
    assert out.shape == (2, 16, 64)


@pytest.mark.slow
@pytest.mark.parametrize("first_call", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_quick_run(first_call: bool, tmp_path: Path) -> None:
    """Eager and gflow through an item with gradients, with results that agree. First calls take four more processes."""
    path = tmp_path / "out.json"
    options = ["--quick", "--models", "layer_norm_grad", "--peers", "eager,gflow"]
    options += [
        "--threads",
        "1",
        "--no-memory",
        "--busy",
        *(["--no-first-call"] * (not first_call)),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options, "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert result["machine"]["cores"]
    for row in result["rows"]:
        assert not row["errors"]
        assert row["peers"]["gflow"]["step_ms"] > 0
        assert row["peers"]["gflow"]["busy_ms"] > 0
        assert not first_call or row["peers"]["gflow"]["first_call_cold_s"] > 0


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = (
        ["--models", "vgg"],
        ["--peers", "tvm"],
        ["passes", "--graphs", "ring"],
        ["transformers", "--models", "vgg"],
    )
    for options in unknown:
        with pytest.raises(SystemExit) as done:
            benchmarks_main(options)
        assert done.value.code == 2
        assert "there are" in capsys.readouterr().err


@pytest.mark.sweep
def test_passes_against_ops(tmp_path: Path) -> None:
    """Every pass of the pipeline is in the table, and the mixture has about the ops asked for."""
    path = tmp_path / "passes.json"
    options = ["--graphs", "mixture", "--sizes", "100,200", "--repeats", "1", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "passes", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = json.loads(path.read_text())["graphs"]["mixture"]["points"]
    assert first["ops"] == pytest.approx(100, rel=0.3)
    assert second["ops"] == pytest.approx(200, rel=0.3)
    for name in ("verify", "cse", "gflow-simplify", "gflow-fuse", "codegen"):
        assert name in done.stdout
        assert second["passes"][name] > 0
    assert "LLVM JIT" in done.stdout


def test_kernels_through_linalg(tmp_path: Path) -> None:
    """Every way computes what float64 does (else the measurement raises), and all phases were timed."""
    path = tmp_path / "out.json"
    assert linalg.main(["--quick", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["code_lines"]["gflow"] > result["code_lines"]["linalg"] > 0
    for case in linalg.QUICK:
        rows = result["rows"][case.name]
        assert {"gflow", "linalg", "linalg, sizes in types", "linalg, libm"} <= rows.keys()
        for name, row in rows.items():
            assert row["error"] < 1e-6
            assert name == "gflow" or row["compile_ms"]["schedule"] > 0
            assert row["threads"].keys() == {"1", "2"}


def of_kernels(main: Callable[[list[str]], int], tmp_path: Path) -> dict[str, Any]:
    """What a benchmark of kernels with vectors finds at a small size."""
    if not host_level():
        pytest.skip("this processor has no vectors that gflow's own kernels are made for")
    path = tmp_path / "out.json"
    threads = torch.get_num_threads()
    try:
        assert main(["--quick", "--json", str(path)]) == 0
    finally:
        torch.set_num_threads(threads)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_products(tmp_path: Path) -> None:
    """Own products beside MKL and oneDNN, at a small size."""
    (row,) = of_kernels(products.main, tmp_path)["rows"].values()
    assert row["rates"].keys() == {"own", "MKL", "oneDNN", "peak"}
    assert row["error"] < 1e-6


def test_attention(tmp_path: Path) -> None:
    """Our own attention beside ATen's, at a small size."""
    found = of_kernels(attention.main, tmp_path)
    assert len(found["rows"]) == 2
    for row in found["rows"].values():
        assert max(row["errors"].values()) < 2e-6
    assert found["written out"]["arena"].keys() == {"one op", "written out"}


@pytest.mark.parametrize(("flags", "engine"), [([], "onnxruntime"), (["--training"], "xla")])
def test_engines(flags: list[str], engine: str, tmp_path: Path) -> None:
    """An engine beside our own code, at a small size."""
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    path = tmp_path / "out.json"
    given = ["--quick", "--models", "mlp", "--engines", engine, "--json", str(path), *flags]
    assert engines.main(given) == 0
    rows = json.loads(path.read_text())["rows"]["mlp"]
    assert rows.keys() == {"own", engine}
    assert rows["own"]["ratio"] == 1
    assert rows[engine]["difference"] < 1e-5
    assert rows[engine]["regions"] == 1


def test_engines_are_known() -> None:
    with pytest.raises(SystemExit):
        engines.main(["--engines", "tvm"])


def test_linalg_takes_kernels_of_rows_only() -> None:
    columns = linalg.Case("sums of columns", lambda x: x.sum(0), lambda: [torch.randn(40, 48)])
    region = linalg.region_of(columns)
    with pytest.raises(ValueError, match="only kernels of rows"):
        linalg.text_of(region, linalg.WAYS["linalg"])


@pytest.mark.sweep
def test_quick_run_of_a_transformers_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "out.json"
    options = ["--quick", "--models", "t5", "--modes", "training", "--peers", "eager,gflow"]
    options += ["--rounds", "1", "--no-first-call", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "transformers", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(path.read_text())["rows"]
    assert {*row["ms"]} == {"eager", "gflow"}
    assert row["difference"]["gflow"] < 1e-4
    assert any("index_add" in name for name in row["aten"])
    assert "index_add ×" in done.stdout


@pytest.mark.sweep
def test_frozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Peers agree, and each has a row; those of other projects where they are installed."""
    found = tmp_path / "frozen.json"
    options = ["--quick", "--no-compile", "--models", "bert,decode", "--rounds", "1"]
    assert frozen.main([*options, "--json", str(found)]) == 0
    rows = json.loads(found.read_text())["rows"]
    engines = {name for name in frozen.ENGINES if available(name)}
    assert set(rows["bert"]) == {"eager", "gflow", "gflow frozen"} | engines
    assert set(rows["decode"]) == {"eager", "gflow", "gflow frozen", "gflow int8", "gflow int4"}
    assert "bert" in capsys.readouterr().out

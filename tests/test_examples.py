"""The example scripts run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from warm import Server

from tests.docs.blocks import blocks_of

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(
    path.name
    for path in (ROOT / "examples").glob("*.py")
    if "import gflow" in path.read_text() and path.name not in ("train_mobilenet.py", "generate.py")
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What the scripts import, imported once."""
    server = Server(
        ["gflow.nn.graph", "gflow.lowering", "gflow.execution.executor", "gflow.compiler"]
    )
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, server: Server) -> None:
    done = subprocess.run(
        server.command(f"examples/{name}"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr  # the scripts assert what they show


def test_generation() -> None:
    """Caches are updated in place, and the tokens are eager's (the script asserts it)."""
    pytest.importorskip("transformers")
    small = ["--width", "64", "--layers", "2", "--words", "300", "--tokens", "8"]
    begin = (
        "import runpy, sys; from benchmarks.workloads.third_party import declare_torchvision_ops as declare; "
        "declare(); sys.path[0] = 'examples'; sys.argv[0] = 'examples/generate.py'; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"  # transformers imports torchvision, if it is there
    )
    done = run("-c", begin, *small, "--prompts", "5", "9", "--no-compile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"gflow +[0-9.]+ tokens a second", done.stdout)) == 2, done.stdout


@pytest.mark.slow
def test_main_job(tmp_path: Path) -> None:
    """Digits: the loss falls and is eager's, the IR is where the output says."""
    ir = tmp_path / "step.mlir"
    options = ["--epochs", "2", "--compare-steps", "8", "--no-memory", "--ir", str(ir)]
    done = run("examples/train_mobilenet.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"epoch +\d+ +loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 2, done.stdout
    assert losses[1] < losses[0], done.stdout
    compared = re.findall(r"([0-9.]+) and ([0-9.]+) at step \d+", done.stdout)
    assert len(compared) == 2, done.stdout
    first = [float(value) for value in compared[0]]
    assert first[0] == pytest.approx(first[1], rel=1e-4)
    assert "accuracy on the held-out images" in done.stdout
    assert "func @" in ir.read_text()
    unlike = [line for line in done.stdout.splitlines() if not _documented(line)]
    assert not unlike, f"docs/benchmarks.md does not show such lines: {unlike}"


def _documented(line: str) -> bool:
    """Whether the documented listing of the main job has a line like this, but for its numbers."""
    (block,) = (
        b for b in blocks_of(ROOT / "docs" / "benchmarks.md") if b.text.startswith("digits (")
    )
    return _shape(line) in {_shape(known) for known in block.text.splitlines()}


def _shape(line: str) -> str:
    path = re.sub(r"(IR of the step: ).*", r"\1FILE", line)
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", " ".join(path.split()))


def cifar_folder(folder: Path, records: int) -> Path:
    rng = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        raw = rng.integers(0, 256, (records, 1 + 3072), dtype=np.uint8)
        raw[:, 0] %= 10
        raw.tofile(folder / name)
    return folder


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return __import__("images")


def test_cifar_from_a_folder(images, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    data = images.load_images(cifar_folder(tmp_path, 20))
    assert data.train_x.shape == (20, 3, 32, 32)
    assert data.test_y.shape == (20,)
    assert abs(float(data.train_x.mean())) < 1e-5
    raw = np.fromfile(tmp_path / "data_batch_1.bin", dtype=np.uint8).reshape(20, -1)
    assert data.train_y.tolist() == raw[:, 0].tolist()


def test_cifar_refusals(images, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit, match="holds no data_batch"):
        images.load_images(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(b"a pickle")
    with pytest.raises(SystemExit, match="pickles and are not read"):
        images.load_images(tmp_path)
    cifar_folder(tmp_path, 3)
    (tmp_path / "data_batch_1.bin").write_bytes(b"\0" * 100)
    with pytest.raises(SystemExit, match="cut off"):
        images.load_images(tmp_path)

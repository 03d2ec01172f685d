"""The wheel holds everything and works outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"frontend": "", "dialects": "dialects", "compiler": "compiler", "runtime": "runtime"}

MODULE = """\
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
"""

TRAIN = """\
import gflow as flow

class G(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = flow.nn.Linear(3, 1)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
    def build(self, x):
        loss = self.model(x).pow(2).mean()
        loss.backward()
        return loss

graph, x = G(), flow.ones(2, 3)
first = graph(x).item()
for _ in range(20):
    last = graph(x).item()
assert last < first or first == 0, (first, last)
import gflow.compiler, gflow.runtime, gflow.dialects
print("FILES", *(m.__file__ for m in (flow, gflow.compiler, gflow.runtime, gflow.dialects)))
"""


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that the checkout gets no build folder."""
    source = tmp_path_factory.mktemp("source") / "gflow"
    source.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    run([*pip, "-w", str(out), str(source)])
    (built,) = out.glob("gflow_compiler-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees the installed wheel and not the checkout."""
    target = tmp_path_factory.mktemp("target")
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(target), str(wheel)])
    return {**os.environ, "PYTHONPATH": str(target), "TARGET": str(target)}


@pytest.mark.slow
def test_wheel_lists_every_package(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    missing = []
    for folder, inside in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            name = Path("gflow", inside, path.relative_to(ROOT / folder)).as_posix()
            if name not in held:
                missing.append(name)
    assert not missing, f"not in the wheel: {missing}"
    extra = [n for n in held if not n.startswith(("gflow/", "gflow_compiler-"))]
    assert not extra, f"the wheel also installs {extra}"


@pytest.mark.slow
def test_wheel_trains_outside_the_checkout(installed: dict[str, str], tmp_path: Path) -> None:
    done = run([sys.executable, "-c", TRAIN], cwd=tmp_path, env=installed)
    (files,) = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("FILES"))
    assert files
    assert all(name.startswith(installed["TARGET"]) for name in files), files


@pytest.mark.slow
def test_wheel_installs_gflow_opt(installed: dict[str, str], tmp_path: Path) -> None:
    script = Path(installed["TARGET"], "bin", "gflow-opt")
    assert script.exists()
    source = tmp_path / "in.mlir"
    source.write_text(MODULE)
    done = run([sys.executable, str(script), str(source)], cwd=tmp_path, env=installed)
    assert "func.func @f" in done.stdout


def test_scripts_take_help(tmp_path: Path) -> None:
    """Asked what they do, scripts say it and do nothing."""
    for name in ("import_view", "oneflow_names", "update_lit_checks", "versioned_docs"):
        done = run([sys.executable, str(ROOT / f"scripts/{name}.py"), "--help"], cwd=tmp_path)
        assert done.stdout.startswith(f"usage: {name}.py"), name
    assert not list(tmp_path.iterdir())

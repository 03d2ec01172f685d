"""The report on launches: figures that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.reports.launches import COPIES, LaunchReport, launch_report
from gflow.compiler.targets import DEVICES, Target
from gflow.compiler.tools.opt import main
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

N = 512
BYTES = N * N * 4
SIZE = f"tensor<{N}x{N}xf32>"
JOIN = "{dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}"
TEXT = f"""
func.func @f(%x: {SIZE}, %w: {SIZE}, %b: tensor<{N}xf32>, %unused: {SIZE}) -> (tensor<{2 * N}x{N}xf32>, {SIZE}) {{
  %0 = "gflow.matmul"(%x, %w) : ({SIZE}, {SIZE}) -> {SIZE}
  %1 = "gflow.broadcast"(%b) {{dims = array<i64: 1>, shape = array<i64: {N}, {N}>}} : (tensor<{N}xf32>) -> {SIZE}
  %2 = "gflow.add"(%0, %1) : ({SIZE}, {SIZE}) -> {SIZE}
  %3 = "gflow.concatenate"(%x, %w) {JOIN} : ({SIZE}, {SIZE}) -> tensor<{2 * N}x{N}xf32>
  return %3, %2 : tensor<{2 * N}x{N}xf32>, {SIZE}
}}
"""


def made(text: str) -> LaunchReport:
    with make_context():
        module = ir.Module.parse(text)
        run_pipeline(module, pipeline_for("cuda:90"))
        return launch_report(entry_function(module), Target("cuda", 90))


def test_figures_by_hand() -> None:
    found = made(TEXT)
    kinds = {entry.kind: entry for entry in found.launches}
    assert list(kinds) == ["matmul", "copy"]
    product, copy = kinds["matmul"], kinds["copy"]
    assert (product.read, product.written) == (2 * BYTES + 4 * N, BYTES)
    assert product.flops == 2 * N**3 + N * N
    assert (copy.launches, copy.read, copy.written) == (2, 2 * BYTES, 2 * BYTES)
    assert (found.count, found.copied) == (3, 4 * BYTES)
    assert found.moved == 7 * BYTES + 4 * N
    assert found.bound.bytes == 5 * BYTES + 4 * N  # what nothing reads doesn't count
    assert found.bound.flops == 2 * N**3
    assert product.programs > 0
    assert 0 < product.waves <= product.programs / DEVICES["h100"].multiprocessors
    device = DEVICES["h100"]
    assert copy.seconds == pytest.approx(4 * BYTES / device.bandwidth + 2 * device.launch)


def test_tf32_where_it_is_allowed() -> None:
    allowed = TEXT.replace(f"{SIZE}) {{", f'{SIZE}) attributes {{gflow.tf32 = ["matmul"]}} {{', 1)
    slow, fast = (
        next(e for e in made(text).launches if e.kind == "matmul") for text in (TEXT, allowed)
    )
    assert fast.seconds < slow.seconds
    assert fast.moved == slow.moved


def test_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "f.mlir"
    path.write_text(TEXT)
    assert main([str(path), "--pipeline-for=cuda:90", "--emit=launches"]) == 0
    out = capsys.readouterr().out
    assert "@f on h100" in out
    for words in ("matmul", "copy", "total", "lower bound", "concatenate"):
        assert words in out
    assert "cast" in COPIES

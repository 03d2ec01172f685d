"""Reports: figures that can be worked out by hand, and their text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import DEFAULT_PIPELINES
from gflow.compiler.reports.costs import measure, report
from gflow.compiler.targets import DEVICES
from gflow.compiler.tools.opt import main
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

SIZE = "tensor<512x512xf32>"
BYTES = 512 * 512 * 4
TEXT = f"""
func.func @f(%x: {SIZE}, %w: {SIZE}) -> {SIZE} {{
  %0 = "gflow.exp"(%x) : ({SIZE}) -> {SIZE} loc("forward:model.a"("net.py":3:0))
  %1 = "gflow.mul"(%0, %x) : ({SIZE}, {SIZE}) -> {SIZE} loc("forward:model.a"("net.py":4:0))
  %2 = "gflow.neg"(%1) : ({SIZE}) -> {SIZE} loc("forward:model.a"("net.py":5:0))
  %3 = "gflow.matmul"(%2, %w) : ({SIZE}, {SIZE}) -> {SIZE} loc("forward:model.fc"("net.py":6:0))
  return %3 : {SIZE}
}}
"""


def planned(text: str = TEXT):  # type: ignore[no-untyped-def]
    module = ir.Module.parse(text, make_context())
    before = measure(module, "h100")
    run_pipeline(module, DEFAULT_PIPELINES["cpu"])
    return before, module


def test_figures_by_hand() -> None:
    before, module = planned()
    found = report(before, module, "h100")
    assert before.kernels == 4
    assert before.bytes == (2 + 3 + 2 + 3) * BYTES
    assert found.after.kernels == 2
    assert found.after.bytes == (2 + 3) * BYTES
    assert found.bytes_ratio == 0.5
    product = next(o for o in found.after.ops if o.kind == "matmul")
    assert product.flops == 2 * 512**3
    device = DEVICES["h100"]
    rate = device.matmul["f32"]
    roof = max(3 * BYTES / device.bandwidth, product.flops / rate) + device.launch
    assert product.seconds == pytest.approx(roof)
    assert found.after.seconds == pytest.approx(sum(o.seconds for o in found.after.ops))
    assert found.heaviest[0] == product
    assert product.source.module == "model.fc"
    assert product.source.place == "net.py:6"
    assert found.after.arena is not None
    assert before.arena is None


def test_a_report_of_two_modules() -> None:
    first, second = ir.Module.parse(TEXT, make_context()), planned()[1]
    found = report(first, second)
    assert found.device.name == "cpu"
    assert found.bytes_ratio == 0.5
    assert "bytes moved" in str(found)
    assert "warning" not in str(found)
    with pytest.raises(ValueError, match="no device 'h10'; did you mean 'h100'"):
        report(first, second, "h10")


def test_calls_into_pytorch_are_listed() -> None:
    call = (
        '"gflow.aten"(%x) {args = "[[{\\"t\\": 0}], {}]", overload = "aten.NAME.default", '
        "operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = "
        f"array<i32: 1, 0, 0, 0, 0, 0, 0, 0>}} : ({SIZE}) -> {SIZE}"
    )
    lines = [f"func.func @f(%x: {SIZE}) -> ({SIZE}, {SIZE}, {SIZE}) {{"]
    for i, name in enumerate(["erfinv", "i0", "erfinv"]):
        place = f'loc("forward:model.m{i}"("net.py":{i}:0))'
        told = call.replace("NAME", name).replace("%x", "%0" if i == 2 else "%x")
        lines.append(f"  %{i} = {told} {place}")
    lines += [f"  return %0, %1, %2 : {SIZE}, {SIZE}, {SIZE}", "}"]
    found = report(*planned("\n".join(lines)))
    assert list(found.after.aten) == ["aten.erfinv.default", "aten.i0.default"]
    text = str(found)
    assert "warning: these ops have no kernels and run through PyTorch" in text
    assert "2 × aten.erfinv.default  forward:model.m0" in text


def test_an_empty_program() -> None:
    module = ir.Module.parse(
        f"func.func @f(%x: {SIZE}) -> {SIZE} {{ return %x : {SIZE} }}", make_context()
    )
    found = report(module, module)
    assert (found.after.kernels, found.after.bytes, found.bytes_ratio) == (0, 0, 1.0)
    assert "kernels" in str(found)


def test_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    assert main([str(source), "--gflow-fuse", "--gflow-report", "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err
    assert "least time on cpu" in told
    assert "forward:model.fc net.py:6" in told
    assert main([str(source), "--gflow-report=none"]) == 1
    assert "gflow-opt: no device 'none'" in capsys.readouterr().err

"""Passes that fail or break: clean diagnostics, and reproducers that fail the same way again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gflow.compiler import CompileOptions, compile_module
from gflow.compiler.driver import pass_manager
from gflow.compiler.driver.pass_manager import PipelineError
from gflow.compiler.driver.reproducer import ReproducerError, read
from gflow.compiler.ir.errors import PassError
from gflow.compiler.passes.base import Pass
from gflow.compiler.tools.opt import main
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

TEXT = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("forward:model.act"("net.py":7:3))
  %1 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def _first(function):  # type: ignore[no-untyped-def]
    return function.regions[0].blocks[0].operations[0].operation


def _fail(function, options) -> None:  # type: ignore[no-untyped-def]
    raise PassError("cannot do this here", _first(function))


def _broken(function, options) -> None:  # type: ignore[no-untyped-def]
    op = _first(function)
    [][len(op.operands)]


def _invalid(function, options) -> None:  # type: ignore[no-untyped-def]
    _first(function).results[0].set_type(ir.RankedTensorType.get([5], ir.F32Type.get()))


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"x-fail": _fail, "x-broken": _broken, "x-invalid": _invalid}
    found = {
        **pass_manager.our_passes(),
        **{name: Pass(name, run, doc=name) for name, run in extra.items()},
    }
    monkeypatch.setattr(pass_manager, "our_passes", lambda: found)
    monkeypatch.delenv("GFLOW_DEBUG", raising=False)
    monkeypatch.delenv("GFLOW_REPRODUCER_DIR", raising=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x-fail", "net.py:7:3: error: cannot do this here"),
        (
            "x-broken",
            "net.py:7:3: error: internal error in pass 'x-broken' at 'gflow.exp': IndexError: list index out of range",
        ),
        ("x-invalid", "result #0 must be tensor<4xf32>, found tensor<5xf32>"),
    ],
)  # fmt: skip
def test_a_reproducer_fails_the_same_way(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, kept = tmp_path / "in.mlir", tmp_path / "kept.mlir"
    source.write_text(TEXT)
    pipeline = f"builtin.module(func.func(cse,{name},canonicalize))"
    flag = f"--mlir-pass-pipeline-crash-reproducer={kept}"
    assert main([str(source), f"--pass-pipeline={pipeline}", flag]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert f"reproducer: {kept} (run gflow-opt --run-reproducer {kept})" in told
    text = kept.read_text()
    assert text.count('"gflow.exp"') == 1  # as the failing pass found it: after cse
    assert read(text).pipeline == f"builtin.module(func.func({name}))"
    assert main([str(kept), "--run-reproducer"]) == 1
    again = capsys.readouterr().err
    assert message in again
    assert "ignoring unknown external resources" not in again


def test_success_leaves_no_reproducer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, kept = tmp_path / "in.mlir", tmp_path / "kept.mlir"
    source.write_text(TEXT)
    flag = f"--mlir-pass-pipeline-crash-reproducer={kept}"
    assert main([str(source), "--cse", "--gflow-simplify", flag]) == 0
    assert not kept.exists()


def test_a_crash_of_the_process_leaves_a_reproducer(tmp_path: Path) -> None:
    kept = tmp_path / "kept.mlir"
    (tmp_path / "in.mlir").write_text(TEXT)
    code = f"""
import ctypes
from gflow.compiler.driver import pass_manager
from gflow.compiler.tools.opt import main
from gflow.compiler.passes.base import Pass
found = dict(pass_manager.our_passes())
found["x-crash"] = Pass("x-crash", lambda f, o: ctypes.string_at(0), doc="")
pass_manager.our_passes = lambda: found
main([{str(tmp_path / "in.mlir")!r}, "--cse", "--x-crash", "--mlir-pass-pipeline-crash-reproducer={kept}"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -11
    assert read(kept.read_text()).pipeline == "any(x-crash)"


def test_tracebacks_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_DEBUG", "1")
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    with pytest.raises(IndexError):
        main([str(source), "--x-broken"])


@pytest.mark.parametrize("way", ["option", "environment"])
def test_compiling_from_python_leaves_a_reproducer(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = CompileOptions(pipeline="builtin.module(func.func(cse,x-broken))")
    if way == "option":
        options.reproducer_dir = str(tmp_path)
    else:
        monkeypatch.setenv("GFLOW_REPRODUCER_DIR", str(tmp_path))
    for name in ("f.mlir", "f.1.mlir"):
        with pytest.raises(PipelineError) as caught:
            compile_module(ir.Module.parse(TEXT, make_context()), options)
        kept = tmp_path / name
        assert caught.value.reproducer == kept
        assert caught.value.__suppress_context__
        assert f"reproducer: {kept}" in str(caught.value)
        assert "internal error in pass 'x-broken' at 'gflow.exp'" in str(caught.value)
        assert main([str(kept), "--run-reproducer"]) == 1
        assert "internal error in pass 'x-broken'" in capsys.readouterr().err


def test_broken_code_generation_leaves_a_reproducer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gflow.compiler.emit.cpu import build

    def broken(function, **options):  # type: ignore[no-untyped-def]
        raise KeyError("lost")

    monkeypatch.setattr(build, "build_program", broken)
    options = CompileOptions(reproducer_dir=str(tmp_path))
    with pytest.raises(
        PipelineError, match=r"code generation failed\n.*internal error in code gen"
    ):
        compile_module(ir.Module.parse(TEXT, make_context()), options)
    assert "gflow.arena_size" in (tmp_path / "f.mlir").read_text()


def test_what_is_no_reproducer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReproducerError, match="holds no reproducer"):
        read(TEXT)
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    assert main([str(source), "--run-reproducer"]) == 1
    assert "gflow-opt: the input holds no reproducer" in capsys.readouterr().err
    assert main([str(source), "--run-reproducer", "--cse"]) == 1
    assert "cannot be used together" in capsys.readouterr().err


def test_where_a_reproducer_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    flag = "--mlir-pass-pipeline-crash-reproducer=/dev/null/x.mlir"
    assert main([str(source), "--cse", flag]) == 1
    assert "cannot write the reproducer '/dev/null/x.mlir'" in capsys.readouterr().err


def test_quoting_of_pipelines() -> None:
    from gflow.compiler.driver.reproducer import _quoted

    for pipeline in ('any(a{x="1 2" y=\\})', "builtin.module(func.func(cse))", "any(ä)"):
        text = f"{{-# external_resources: {{ mlir_reproducer: {{ pipeline: {_quoted(pipeline)} }} }} #-}}"
        assert read(text).pipeline == pipeline
    assert not read('mlir_reproducer: { pipeline: "x", verify_each: false }').verify_each

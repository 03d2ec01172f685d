"""gflow-reduce: planted bugs are found again in modules of a few ops, and the same ones each time."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from random_ir import random_module

from gflow.compiler.driver import pass_manager
from gflow.compiler.ir.errors import PassError
from gflow.compiler.passes.base import Pass
from gflow.compiler.tools import reduce
from gflow.compiler.tools.shrink import REDUCTIONS
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir


def _ops(function):  # type: ignore[no-untyped-def]
    return [o.operation for o in function.regions[0].blocks[0].operations]


def _reads(name: str, by: str) -> Callable[[object], ir.Operation | None]:
    """Finds an op `by` that reads the result of an op `name`."""

    def find(function: object) -> ir.Operation | None:
        for op in _ops(function):
            makers = [v.owner for v in op.operands if not isinstance(v.owner, ir.Block)]
            if op.name == by and any(m.operation.name == name for m in makers):
                return op
        return None

    return find


_TANH_OF_EXP = _reads("gflow.exp", "gflow.tanh")


def _refuses(function, options) -> None:  # type: ignore[no-untyped-def]
    op = _TANH_OF_EXP(function)
    if op is not None:
        raise PassError(f"no tanh of exp, {op.results[0].type}", op)


def _breaks(function, options) -> None:  # type: ignore[no-untyped-def]
    if _TANH_OF_EXP(function) is not None:
        raise KeyError("lost")


def _crashes(function, options) -> None:  # type: ignore[no-untyped-def]
    if _TANH_OF_EXP(function) is not None:
        ctypes.string_at(0)


def _hangs(function, options) -> None:  # type: ignore[no-untyped-def]
    while _TANH_OF_EXP(function) is not None:
        time.sleep(0.01)


def _region(function, options) -> None:  # type: ignore[no-untyped-def]
    for op in _ops(function):
        if op.name == "gflow.fused":
            for inner in op.regions[0].blocks[0].operations:
                if inner.operation.name == "gflow.sqrt":
                    raise PassError("a square root", op)


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "x-refuses": _refuses, "x-breaks": _breaks, "x-crashes": _crashes, "x-hangs": _hangs,
        "x-region": _region,
    }  # fmt: skip
    found = {**pass_manager.our_passes(), **{n: Pass(n, run) for n, run in extra.items()}}
    monkeypatch.setattr(pass_manager, "our_passes", lambda: found)
    monkeypatch.delenv("GFLOW_DEBUG", raising=False)


def program(ops: int = 40) -> str:
    """A long function with one `tanh` of an `exp` in its middle, beside another function."""
    ty = "tensor<16x32xf32>"
    names = ["neg", "abs", "exp", "sqrt", "floor"]
    lines = [
        f"func.func @other(%a: {ty}) -> {ty} {{",
        f'  %0 = "gflow.neg"(%a) : ({ty}) -> {ty}',
        f"  return %0 : {ty}",
        "}",
        f'func.func @f(%x: {ty} {{gflow.name = "x"}}, %y: {ty}) -> ({ty} {{gflow.alias = 1 : i64}}, {ty}) {{',
    ]
    for i in range(ops):
        name = "tanh" if i == ops // 2 + 1 else "exp" if i == ops // 2 else names[i % 2]
        a = f"%{i - 1}" if i else "%x"
        lines.append(
            f'  %{i} = "gflow.{name}"({a}) : ({ty}) -> {ty} loc("m.{i}"("net.py":{i + 1}:0))'
        )
        lines.append(f'  %s{i} = "gflow.add"(%{i}, %y) : ({ty}, {ty}) -> {ty}')
    lines += [f"  return %{ops - 1}, %s{ops // 3} : {ty}, {ty}", "}", ""]
    return "\n".join(lines)


def _small(text: str) -> list[str]:
    with make_context():
        module = ir.Module.parse(text)
        return [o.operation.name for f in module.body.operations for o in _ops(f.operation)]


@pytest.mark.parametrize("name", ["x-refuses", "x-breaks", "x-crashes"])
def test_planted_bugs_shrink_to_what_they_need(name: str) -> None:
    pipeline = f"builtin.module(func.func({name}))"
    wanted = reduce.outcome_of(program(), pipeline, 30)
    assert wanted
    search = reduce.reduce_text(program(), reduce.pipeline_test(pipeline, wanted, 30), 120)
    assert _small(search.text) == ["gflow.exp", "gflow.tanh", "func.return"]
    assert "tensor<1x1xf32>" in search.text
    assert "loc(" not in search.text
    assert "gflow.name" not in search.text
    assert search.text.count("%arg") <= 3
    assert search.tried < 200
    if name == "x-refuses":  # the search is the same for all
        again = reduce.reduce_text(program(), reduce.pipeline_test(pipeline, wanted, 30), 120)
        assert again.text == search.text


def test_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = "builtin.module(func.func(x-hangs))"
    text = program(8)
    assert reduce.outcome_of(text, pipeline, 0.5) == "time-out"
    search = reduce.reduce_text(text, reduce.pipeline_test(pipeline, "time-out", 0.5), 60)
    assert _small(search.text) == ["gflow.exp", "gflow.tanh", "func.return"]


def test_regions_shrink(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = program(12).replace('"gflow.tanh"', '"gflow.sqrt"')
    with make_context():
        module = ir.Module.parse(text)
        pass_manager.run_pipeline(module, "builtin.module(func.func(gflow-fuse))")
        fused = str(module)
    assert fused.count('"gflow.fused"') >= 1
    source, target = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(fused)
    pipeline = "--pass-pipeline=builtin.module(func.func(x-region))"
    assert reduce.main([str(source), pipeline, "-o", str(target)]) == 0
    assert "looking for: pass x-region: a square root" in capfd.readouterr().err
    small = target.read_text()
    assert small.count('"gflow.') == 3  # the kernel, the root, the yield
    assert '"gflow.sqrt"' in small


def test_a_command_tells_what_is_interesting(tmp_path: Path) -> None:
    source, target, script = (tmp_path / n for n in ("in.mlir", "out.mlir", "test.sh"))
    source.write_text(program(10))
    script.write_text('#!/bin/sh\ngrep -q "$1" "$2" && exit 1\nexit 0\n')
    script.chmod(0o755)
    args = [str(source), f"--test={script}", "--test-arg=gflow.floor", "-o", str(target)]
    assert reduce.main(args) == 1  # not interesting
    args[2] = "--test-arg=gflow.tanh"
    assert reduce.main(args) == 0
    assert _small(target.read_text()) == ["gflow.tanh", "func.return"]


def test_text_that_is_not_valid_shrinks_by_lines(tmp_path: Path) -> None:
    text = program(10).replace('"gflow.tanh"(%5)', '"gflow.tanh"()')
    pipeline = "builtin.module(func.func(cse))"
    wanted = reduce.outcome_of(text, pipeline, 30)
    assert wanted.startswith("invalid input: ")
    search = reduce.reduce_text(text, reduce.pipeline_test(pipeline, wanted, 30), 60)
    assert len(search.text.split("\n")) < 16
    assert reduce.outcome_of(search.text, pipeline, 30) == wanted


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(program(4))
    assert reduce.main([str(source), "--pipeline-for=cpu"]) == 1
    assert "not interesting: the pipeline goes well on it" in capfd.readouterr().err
    assert reduce.main([str(tmp_path / "none.mlir"), "--pipeline-for=cpu"]) == 1
    assert "cannot open input file" in capfd.readouterr().err
    assert reduce.main([str(source), "--pass-pipeline=any(no-such-pass)"]) == 1
    assert "does not refer to a registered pass" in capfd.readouterr().err
    assert reduce.main([str(source), "--run-reproducer"]) == 1
    assert "holds no reproducer" in capfd.readouterr().err
    assert reduce.main([str(source), "--pass-pipeline=any(x-refuses)"]) == 0
    out = capfd.readouterr()
    assert "lines to" in out.err
    assert '"gflow.tanh"' in out.out


def test_the_time_limit_holds() -> None:
    slow = reduce.reduce_text(program(), lambda t: time.sleep(0.1) or "tanh" in t, 0.5)
    assert slow.over
    assert slow.tried < 10
    assert "tanh" in slow.text


@functools.cache
def _random_text(seed: int, pipeline: str) -> str:
    module = random_module(make_context(), seed)
    pass_manager.run_pipeline(module, f"builtin.module(func.func({pipeline}))")
    return str(module)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("pipeline", [pytest.param("cse", marks=pytest.mark.sweep), "gflow-fuse"])
def test_reductions_keep_modules_valid(reduction, pipeline: str) -> None:  # type: ignore[no-untyped-def]
    """Where a reduction takes something out, the module has fewer or simpler parts and is valid."""
    changed = 0
    for seed in range(6):
        text = _random_text(seed, pipeline)
        count = reduce._count(text, reduction)
        for numbers in (range(count), range(count // 2), range(count // 3, count // 2)):
            made = reduce._without(text, reduction, numbers)
            changed += made is not None and made != text
            if made is not None:
                assert reduce.outcome_of(made, "any(cse)", 30) == ""
    assert changed or reduction.name in (
        "functions",
        "ops of regions",
        "operands of regions",
        "attributes",
    )


def test_as_a_program(tmp_path: Path) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(program(4))
    command = [
        sys.executable,
        "-m",
        "gflow.compiler.tools.reduce",
        str(source),
        "--pipeline-for=cpu",
    ]
    done = subprocess.run(
        command, text=True, capture_output=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert (
        done.stderr == "gflow-reduce: the input is not interesting: the pipeline goes well on it\n"
    )

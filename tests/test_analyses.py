"""Analyses that are kept between passes: what a pass says that it kept, it kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import gflow as flow
from gflow.compiler.driver import pass_manager
from gflow.compiler.ir.errors import PassError
from gflow.compiler.kernel import description
from gflow.compiler.memory import liveness
from gflow.compiler.memory.analyses import analyses_kept, analysis, forget
from gflow.compiler.passes.base import Kept, Pass
from gflow.compiler.passes.fusion import fuse
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import processor

MODULE = """func.func @f(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "gflow.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.exp"(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}"""


def _function(module: ir.Module) -> func.FuncOp:
    found = module.body.operations[0].operation.opview
    assert isinstance(found, func.FuncOp)
    return found


def test_an_analysis_is_made_once_in_a_scope_and_again_after_it_was_forgotten() -> None:
    with make_context():
        module = ir.Module.parse(MODULE)
        made: list[int] = []

        def make() -> int:
            made.append(len(made))
            return made[-1]

        assert [analysis(_function(module), "a", make) for _ in range(2)] == [0, 1]
        with analyses_kept():
            assert [analysis(_function(module), "a", make) for _ in range(2)] == [2, 2]
            _function(module).operation.attributes["x"] = ir.UnitAttr.get()  # changes its hash
            assert analysis(_function(module), "a", make) == 2
            assert analysis(_function(module), "b", make) == 3
            forget()
            assert analysis(_function(module), "a", make) == 4
        assert analysis(_function(module), "a", make) == 5


def test_what_a_pass_changes_is_analyzed_again() -> None:
    with make_context():
        module = ir.Module.parse(MODULE)
        found: list[int] = []

        def look(when: str, name: str, root: ir.Operation) -> None:
            if when == "after":
                found.append(len(liveness.lives_at_entry(_function(module)).body.ops))

        pass_manager.run_pipeline(
            module, "builtin.module(func.func(gflow-simplify,gflow-fuse))", instrument=look
        )
    assert found == [2, 1]


def _ops(function: func.FuncOp) -> int:
    return len(liveness.lives_at_entry(function).body.ops)


def test_a_pass_that_is_run_by_hand_forgets_what_it_changes() -> None:
    def fails(function: func.FuncOp, options: Any) -> None:
        fuse.PASS.rewrite(function, options)
        raise PassError("not today")

    for run in (fuse.PASS, Pass("x-fails", fails, fuse.FuseOptions)):
        with make_context(), analyses_kept():
            module = ir.Module.parse(MODULE)
            function = _function(module)
            assert _ops(function) == 2
            with suppress(PassError):
                run.run(function, fuse.FuseOptions())
            assert _ops(function) == 1


@pytest.mark.parametrize("scope", [nullcontext, analyses_kept])
def test_passes_that_a_pass_runs_leave_nothing_known(scope: Any) -> None:
    """Neither of a copy, at whose address the next copy may stand, nor of the function itself."""
    found: list[int] = []

    def outer(function: func.FuncOp, options: Any) -> None:
        for steps in ([asks], [fuse.PASS, asks], [asks, fuse.PASS, asks]):
            copy = function.operation.clone(ip=ir.InsertionPoint(function.operation))
            with scope():
                for step in steps:
                    step.run(copy.opview, step.options())
            copy.erase()
        found.append(_ops(function))
        fuse.PASS.run(function, fuse.FuseOptions())
        found.append(_ops(function))

    def ask(function: func.FuncOp, options: Any) -> Kept:
        found.append(_ops(function))
        return Kept.BODY

    asks = Pass("x-asks", ask)
    with make_context(), analyses_kept():
        module = ir.Module.parse(MODULE)
        function = _function(module)
        asks.run(function, asks.options())
        Pass("x-outer", outer).run(function, None)
        assert _ops(function) == 1
    assert found == [2, 2, 1, 2, 1, 2, 1]


def test_passes_are_run_so_that_they_forget() -> None:
    """The function that rewrites is the pass's own; whoever runs the pass calls `Pass.run`."""
    root = Path(__file__).resolve().parent.parent
    passes = {
        p.stem for p in (root / "compiler/passes").rglob("*.py") if "\nPASS = " in p.read_text()
    }
    assert "select_kernels" in passes
    direct = re.compile(
        rf"\b(?:{'|'.join(sorted(passes))})(?:\.run\(| import .*\brun\b)|\b(?:PASS|ours|step)\.rewrite\("
    )
    assert direct.search("select_kernels.run(twin, options)")
    files = [
        p for folder in ("compiler", "frontend", "scripts") for p in (root / folder).rglob("*.py")
    ]
    assert [str(p) for p in files if direct.search(p.read_text())] == []


@contextmanager
def _compared() -> Iterator[list[str]]:
    """Whatever is known of a function is compared with what is found anew."""
    kept: list[str] = []
    whole = liveness.analysis

    def checked(function: func.FuncOp, key: Any, make: Any) -> Any:
        made: list[Any] = []

        def counted() -> Any:
            made.append(make())
            return made[-1]

        known = whole(function, key, counted)
        if not made:
            new = make()
            if key is liveness.layouts_at_entry:
                assert _numbers(known[0]) == _numbers(new[0])
                assert known[1] == new[1]
                return known
            kept.append(str(key[0].__name__))
            assert _numbers(known.body) == _numbers(liveness.read_layouts(function)[0])
            assert known.place == new.place
            assert known.buffers == new.buffers
            assert known.buffer_of == new.buffer_of
        return known

    def described(self: Any, o: Any, inputs: Any, outputs: Any) -> Any:
        known = self._known.get((o.index, (*inputs, *outputs), len(inputs)))
        found = once(self, o, inputs, outputs)
        if known is not None:
            kept.append("describe")
            assert found == description.describe(o.op, inputs, outputs)
        return found

    once = description.Descriptions.__call__
    with (
        mock.patch.object(liveness, "analysis", checked),
        mock.patch.object(description.Descriptions, "__call__", described),
    ):
        yield kept


def _numbers(body: Any) -> list[Any]:
    return [(o.op, o.operands, o.results) for o in body.ops]


@pytest.mark.parametrize("train", [False, True])
def test_kept_lives_are_those_of_the_function(train: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.Flatten(), nn.Linear(8 * 36, 4)
    ).train(train)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Net(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if train:
                self.add_optimizer(optimizer)

        def build(self, x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(self.model(x), y)
            if train:
                loss.backward()
            return loss

    with _compared() as kept:
        Net()(torch.randn(4, 3, 8, 8), torch.randint(4, (4,)))
    # gflow-plan-memory asks what gflow-select-kernels asked, and code generation what it described
    assert {"lives_at_entry", "describe"} <= {*kept}


def test_copies_that_a_pass_plans_are_analyzed_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each choice of gflow-rematerialize is planned on a copy, which may lie where the one before it did."""
    if processor.amx():  # its scratch is larger than what recomputation saves here
        monkeypatch.setenv(processor.ISA, "x86-64-v4")
    product = "(tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>"
    text = f"""func.func @f(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {{
      %h = "gflow.tanh"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
      %a = "gflow.matmul"(%h, %w) : {product}
      %b = "gflow.matmul"(%a, %w) : {product}
      %c = "gflow.matmul"(%b, %w) : {product}
      %d = "gflow.matmul"(%c, %w) : {product}
      %e = "gflow.matmul"(%h, %d) : {product}
      return %e : tensor<64x64xf32>
    }}"""
    with make_context(), _compared() as kept:
        module = ir.Module.parse(text)
        steps = "gflow-fuse,gflow-rematerialize{fraction=0.7 scratch=cpu}"
        pass_manager.run_pipeline(module, f"builtin.module(func.func({steps}))")
    assert kept  # within one copy
    assert "gflow.recomputed" in str(module)

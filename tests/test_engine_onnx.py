"""ONNX, op by op: what is written is a valid model, and ONNX Runtime runs it as the op does in eager."""

from __future__ import annotations

import pytest
import torch
from engine_cases import EngineCase, all_cases, check

from gflow.compiler.engines.form import NOWHERE, call_of
from gflow.compiler.engines.forms import FORMS, form_of
from gflow.compiler.engines.onnx.write import write_function
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

pytestmark = pytest.mark.skipif(not available("onnxruntime"), reason="onnxruntime is not installed")


def _calls(case: EngineCase) -> list[ir.Operation]:
    block = entry_function(case.module).regions[0].blocks[0]
    return [o.operation for o in list(block.operations)[:-1]]


def cases(engine: str = "onnxruntime") -> list[EngineCase]:
    """Those whose ops an engine has a form for."""
    form = form_of(engine)
    return [c for c in all_cases() if not any(form.why_not(call_of(op)) for op in _calls(c))]


def run(case: EngineCase, engine: str) -> list[torch.Tensor]:
    import onnx

    model = write_function(entry_function(case.module)).model
    onnx.checker.check_model(model, full_check=True)
    count = len(model.graph.output)
    return load_code(engine, model.SerializeToString()).run(case.args, [None] * count)


def test_share_of_the_dialect() -> None:
    ops = {name for name, op in OPS.items() if op.category != "distribution"}
    assert len(ops - set(NOWHERE) - set(FORMS["onnx"].without)) >= 0.85 * len(ops)
    assert {c.op for c in cases()} == ops - set(NOWHERE) | {"aten"}


def test_onnx_runtime() -> None:
    check(cases(), lambda case: run(case, "onnxruntime"))

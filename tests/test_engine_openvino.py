"""OpenVINO, op by op, in the process that holds MLIR's bindings and PyTorch; what it computes otherwise is refused."""

from __future__ import annotations

import pytest
import torch
from codegen_harness import Arg, b, make
from engine_cases import check
from test_engine_onnx import cases, run

from gflow.compiler.engines.form import call_of
from gflow.compiler.engines.forms import form_of
from gflow.compiler.ir.modules import entry_function
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

pytestmark = pytest.mark.skipif(not available("openvino"), reason="openvino is not installed")


def _cases() -> list:
    """Its code takes NaN and infinities for what they are in most places, and not in all."""
    return [c for c in cases("openvino") if not c.special]


def test_some_ops() -> None:
    check(_cases()[::8], lambda case: run(case, "openvino"))


@pytest.mark.sweep
def test_all_ops() -> None:
    check(_cases(), lambda case: run(case, "openvino"))


@pytest.mark.parametrize(
    ("op", "args", "attrs", "why"),
    [
        ("add", [Arg((4,), "f64")] * 2, {}, "has no f64"),
        ("add", [Arg((4,), "i64")] * 2, {}, "i64 in 32 bits"),
        ("random", [Arg((2,), "i64")], {"kind": "uniform", "stream": 1, "shape": (4,), "dtype": "f32"}, "32 bits"),
        ("pad", [Arg((4,)), Arg(())], {"low": (1,), "high": (0,)}, "a constant alone"),
        ("neg", [Arg((1, 0, 3))], {}, "without elements"),
        ("gather", [Arg((2, 3)), Arg((1, 3), "i64", values=torch.zeros(1, 3).long())], {"dim": 1}, "GatherElements"),
    ],
)  # fmt: skip
def test_what_it_computes_otherwise(op: str, args: list[Arg], attrs: dict, why: str) -> None:
    module = make("f", args, lambda *xs: [b(op, *xs, **attrs)]).module
    (one, _) = entry_function(module).regions[0].blocks[0].operations
    assert why in form_of("openvino").why_not(call_of(one.operation))


def test_an_input_that_nothing_needs() -> None:
    """OpenVINO takes it out of the program; the others keep their numbers."""
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["b"], ["y"])], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = torch.randn(3)
    (found,) = load_code("openvino", model.SerializeToString()).run([x + 1, x], [None])
    assert torch.equal(found, -x)

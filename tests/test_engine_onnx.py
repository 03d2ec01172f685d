"""ONNX, op by op: what is written is a valid model, and ONNX Runtime runs it as the op does in eager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from codegen_harness import Arg, b, make
from engine_cases import EngineCase, all_cases, check
from torch.nn import functional as F

import gflow as flow
from gflow import nn
from gflow.compiler.engines.form import NOWHERE, EngineError, call_of
from gflow.compiler.engines.forms import FORMS, form_of, written_form
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

    model = write_function(entry_function(case.module), form=written_form(engine)).model
    onnx.checker.check_model(model, full_check=True)
    count = len(model.graph.output)
    return load_code(engine, model.SerializeToString()).run(case.args, [None] * count)


def test_share_of_the_dialect() -> None:
    ops = {name for name, op in OPS.items() if op.category != "distribution"}
    assert len(ops - set(NOWHERE) - set(FORMS["onnx"].without)) >= 0.85 * len(ops)
    assert {c.op for c in cases()} == ops - set(NOWHERE) | {"aten"}


def test_onnx_runtime() -> None:
    check(cases()[::4], lambda case: run(case, "onnxruntime"))


@pytest.mark.sweep
def test_onnx_runtime_with_all() -> None:
    check(cases(), lambda case: run(case, "onnxruntime"))


def test_an_argument_of_another_type_is_named() -> None:
    case = make("f", [Arg((4,)), Arg((4,), "i8")], lambda x, y: [b("neg", x)])
    with pytest.raises(EngineError, match=r"cannot be written as ONNX: .* is of i8"):
        write_function(entry_function(case.module))


class Functions(torch.nn.Module):
    """What exporters have one op for."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(3, 16, 3), torch.nn.LayerNorm(16)
        self.rms, self.linear = torch.nn.RMSNorm(24), torch.nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, padding=1, ceil_mode=True)
        x = self.norm(x.flatten(2).transpose(1, 2))
        x = self.rms(F.gelu(self.linear(x))) + F.gelu(self.linear(x), approximate="tanh")
        heads = x.unflatten(2, (2, 12)).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1)  # row 0 sees nothing
        heads = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return F.log_softmax(heads, 1).sum(2) + torch.softmax(heads.sum(2), -1)


class Forward(nn.Graph):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config.enable_onnxruntime()

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def test_functions_that_onnx_has_one_op_for(tmp_path: Path) -> None:
    """Of a file; sums and exponentials of what they are made of are gone."""
    import onnx

    torch.manual_seed(0)
    graph, x = Forward(Functions().eval()), torch.randn(2, 3, 11, 11)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), graph.model.to(torch.nn.Module)(x), rtol=1e-4, atol=1e-5)  # fmt: skip
        flow.save(graph, tmp_path / "model.onnx", format="onnx")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    found = Counter(node.op_type for node in model.graph.node)
    names = ("MaxPool", "LayerNormalization", "Gelu", "Softmax", "LogSoftmax", "ReduceMean")
    assert [found[name] for name in names] == [1, 1, 2, 2, 1, 1]
    assert not {"Exp", "Erf", "Tanh", "Max", "If"} & set(found)


def test_a_maximum_of_nan_and_infinities() -> None:
    """ONNX Runtime's own MaxPool passes over NaN, and gives a finite number for -inf: in a first call, and later."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 1, bias=False), torch.nn.MaxPool2d(2))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(16)[..., None, None])
        graph = Forward(module)
        for value in (1.0, float("nan"), float("inf"), -float("inf"), 2.0):
            x = torch.randn(2, 16, 32, 32)
            x[:, :, :4, 2:7] = value
            x = x.masked_fill(torch.arange(16)[:, None, None] > 0, 0.5)  # NaN times 0 is NaN
            frozen = Forward(module)
            frozen.config.freeze()
            for one in (graph, Forward(module), frozen):
                torch.testing.assert_close(one(x), module(x), rtol=1e-5, atol=1e-6, equal_nan=True)
                assert len(one.explain().engines) == 1


class Updated(Forward):
    """A buffer that is the pooling of itself: its old value is read again by the exact model."""

    def build(self, x: torch.Tensor) -> torch.Tensor:
        self.model.state.copy_(
            F.max_pool2d(self.model.state + x, 3, 1, padding=1) + self.model.state
        )
        return self.model.state.sum((0, 1))


def test_an_operand_is_whole_until_results_are_known_to_be_right() -> None:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.register_buffer("state", torch.randn(1, 64, 16, 16))
    graph, beside = Updated(module), module.state.clone()
    with torch.no_grad():
        for value in (1.0, float("nan")):
            x = torch.randn(1, 64, 16, 16)
            x[0, 0, 3, 4] = value
            beside += F.max_pool2d(beside + x, 3, 1, padding=1)
            torch.testing.assert_close(graph(x), beside.sum((0, 1)), equal_nan=True)
            torch.testing.assert_close(module.state, beside, equal_nan=True)
    assert len(graph.explain().engines) == 1

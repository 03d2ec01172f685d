"""Models in ONNX as modules: of PyTorch's exporter and of our own files; they train, and what is not read is named."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gflow as flow
from gflow import nn

onnx = pytest.importorskip("onnx")


class Mixed(torch.nn.Module):
    """Convolutions, norms, attention; shapes are computed in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU6(),
                                        torch.nn.MaxPool2d(3, 2, padding=1))  # fmt: skip
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.table = torch.nn.Parameter(torch.randn(40, 8))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x.reshape(x.shape[0], x.shape[1], -1).transpose(1, 2)
        x = self.layer(x + self.table[: x.shape[1]])
        x = F.pad(x, (0, 0, 1, 2)).flip(1)[:, 1:, :]
        return F.log_softmax(self.head(torch.cat([x.mean(1), x.amax(1)]).clamp(-1, 1)), -1)


def exported(module: torch.nn.Module, *inputs: torch.Tensor) -> bytes:
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is PyTorch's older one
        torch.onnx.export(module, inputs, data, dynamo=False, input_names=["x"])
    return data.getvalue()


def test_a_model_of_the_exporter() -> None:
    """Results, parameters by name, and gradients are the module's."""
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(2, 3, 9, 9)
    loaded = flow.from_onnx(exported(module, x))
    want = torch.autograd.grad(module(x).square().sum(), module.head.weight)[0]
    found = loaded(x)
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    named = dict(loaded.named_parameters())
    torch.testing.assert_close(named["head.weight"].grad, want, rtol=1e-4, atol=1e-5)


def test_a_file_of_ours_trains(tmp_path: Path) -> None:
    class Predict(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = Mixed().eval()

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

    class Train(nn.Graph):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.05))

        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.nll_loss(self.model(x), y)
            loss.backward()
            return loss

    torch.manual_seed(0)
    graph, x, path = Predict(), torch.randn(2, 3, 9, 9), tmp_path / "model.onnx"
    with torch.no_grad():
        want = graph(x)
        flow.save(graph, path, format="onnx")
    model = flow.from_onnx(path)
    with torch.no_grad():
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    names = {name for name, _ in model.named_parameters()}
    assert names == {f"model.{name}" for name, _ in Mixed().named_parameters()}
    train, y = Train(model), torch.randint(0, 4, (4,))
    losses = [float(train(x, y)) for _ in range(4)]
    assert losses[-1] < losses[0]


def _model(kind: str, opset: int = 21, **attributes: Any) -> Any:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    node = helper.make_node(kind, ["x"], ["y"], name="it", **attributes)
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_model("NonZero"), "does not read all of the model:\n  NonZero 'it'"),
        (_model("Relu", opset=9), "opset 9: .*onnx.version_converter"),
        (_model("Cast", to=17), "Cast 'it': a Cast to ONNX's element type 17"),
    ],
)
def test_what_is_not_read(model: Any, why: str) -> None:
    with pytest.raises(flow.GraphError, match=why):
        flow.from_onnx(model)(torch.randn(2, 3))


def test_inputs() -> None:
    with pytest.raises(flow.GraphInputError, match="takes x; got 2 inputs"):
        flow.from_onnx(_model("Relu"))(torch.randn(2, 3), torch.randn(2, 3))

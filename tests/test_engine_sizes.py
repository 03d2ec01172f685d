"""Sizes that vary from call to call with engines: one program, results as those of eager; files with names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engines import Block, calls_of
from torch import Tensor

import gflow as flow
from gflow import nn
from gflow.runtime.engines.packages import available

SWITCHES = {"xla": "enable_xla_jit", "onnxruntime": "enable_onnxruntime", "openvino": "enable_openvino"}  # fmt: skip


class Predict(nn.Graph):
    def __init__(self, model: nn.Module, engine: str) -> None:
        super().__init__()
        self.model = model
        if engine:
            getattr(self.config, SWITCHES[engine])()

    def build(self, x: Tensor) -> Any:
        return self.model(x)


class Causal(nn.Module):
    """Positions, a causal mask, running sums and positions of maxima, along a length that varies."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.project = nn.Linear(32, 96)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = self.project(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.cumsum(2), y.argmax(-1), x.mean() + tokens.shape[1]


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3),
                         nn.MaxPool2d((2, 1)))  # fmt: skip


Call = tuple[Callable[[], nn.Module], Callable[..., Tensor], tuple[int, ...], list[tuple[int, ...]]]
CASES: dict[str, Call] = {
    "batch": (Block, lambda n: torch.randint(0, 50, (n, 12)), (0,), [(3,), (16,)]),
    "batch of images": (convolutions, lambda n: torch.randn(n, 3, 12, 12), (0,), [(2,), (5,)]),
    "height": (convolutions, lambda n: torch.randn(2, 3, n, 12), (2,), [(8,), (12,)]),
    "length": (Causal, lambda n: torch.randint(0, 50, (4, n)), (1,), [(3,), (8,), (16,)]),
    "both": (Causal, lambda n, m: torch.randint(0, 50, (n, m)), (0, 1), [(3, 5), (8, 4)]),
}


def marked(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for n, dim in enumerate(dims):  # with ranges of their own, two are two sizes
        x = flow.dynamic_dim(x, dim, min=2 + n, max=16)
    return x


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_one_program_for_all_sizes(engine: str) -> None:
    check("both", engine)


@pytest.mark.sweep
@pytest.mark.parametrize("engine", list(SWITCHES))
@pytest.mark.parametrize("name", list(CASES))
def test_more_programs(name: str, engine: str) -> None:
    check(name, engine)


def check(name: str, engine: str) -> None:
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    make, data, dims, sizes = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    graph = Predict(model, engine)
    with torch.no_grad():
        for size in sizes:
            x = data(*size)
            torch.testing.assert_close(graph(marked(x, dims)), model(x), rtol=1e-4, atol=1e-5)
    assert len(graph.explain_recompiles()) == 1
    calls = calls_of(graph)
    assert calls
    # XLA has code for each size, the others have one model
    assert all(bool(c.step.numbers) == (engine == "xla") for c in calls)
    assert all(r.read < 1 << 30 for r in graph.explain().engines)  # at the largest size


class Train(nn.Graph):
    def __init__(self, xla: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        if xla:
            self.config.enable_xla_jit()

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")
def test_training_and_a_saved_graph(tmp_path: Path) -> None:
    """Losses of batches of several sizes are those of our kernels; a graph that is loaded goes on alike."""
    torch.manual_seed(1)
    batches = [(torch.randn(n, 16), torch.randint(0, 4, (n,))) for n in (5, 8, 5)]
    losses = []
    for xla in (False, True):
        graph = Train(xla)
        torch.manual_seed(2)  # of dropout
        losses.append([float(graph(marked(x, (0,)), marked(y, (0,)))) for x, y in batches])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    flow.save(graph, tmp_path / "step")
    loaded = flow.load(tmp_path / "step")
    x, y = torch.randn(11, 16), torch.randint(0, 4, (11,))  # a size that was not there
    torch.manual_seed(3)
    want = float(graph(marked(x, (0,)), marked(y, (0,))))
    torch.manual_seed(3)
    assert float(loaded(x, y)) == pytest.approx(want, rel=1e-4)


def test_an_onnx_file_has_names_of_sizes(tmp_path: Path) -> None:
    """Both engines' own tools run it at sizes that no call had."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    openvino = pytest.importorskip("openvino")
    model = Causal().eval()
    graph, path = Predict(model, ""), tmp_path / "model.onnx"
    with torch.no_grad():
        graph(marked(torch.randint(0, 50, (3, 5)), (0, 1)))
        flow.save(graph, path, format="onnx")
    onnx.checker.check_model(str(path), full_check=True)
    (given,) = onnx.load(path).graph.input  # the sizes are no inputs
    names = [d.dim_param for d in given.type.tensor_type.shape.dim]
    assert all(names)
    assert len(set(names)) == 2
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    run = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = torch.randint(0, 50, (7, 16))
    with torch.no_grad():
        want = model(x)
    for found in (session.run(None, {"x": x.numpy()}), [*run([x.numpy()]).values()]):
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(torch.from_numpy(a.copy()).to(b.dtype), b, rtol=1e-4, atol=1e-4)  # fmt: skip

"""Graphs whose steps another engine runs, in whole or in parts: results, copies, what stays, files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow as flow
from gflow import nn
from gflow.dialects.program import EngineStep
from gflow.runtime import frames
from gflow.runtime.engines.packages import available
from gflow.runtime.engines.step import EngineCall

pytestmark = pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")


class Train(nn.Graph):
    def __init__(self, model: Callable[[], nn.Module], xla: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = model()
        self.loss = nn.CrossEntropyLoss()
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-3))
        if xla:
            self.config.enable_xla_jit()

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.2), nn.Linear(32, 4)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens)).mean(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(8, 16)),
    "convolutions": (convolutions, lambda: torch.randn(8, 3, 16, 16)),
    "attention": (Block, lambda: torch.randint(0, 50, (8, 12))),
}


def calls_of(graph: Any) -> list[EngineCall]:
    run = graph._checked().latest.compiled.run
    return [
        part for part in (*run._frame.moving, *run._frame.staying) if isinstance(part, EngineCall)
    ]


@pytest.mark.parametrize("name", list(MODELS))
def test_training_as_a_whole_step(name: str) -> None:
    """As many steps as ours, with the same losses and parameters; no copy but of what XLA gives."""
    model, data = MODELS[name]
    torch.manual_seed(1)
    batches = [(data(), torch.randint(0, 4, (8,))) for _ in range(4)]
    losses, graphs = [], []
    for xla in (False, True):
        graph = Train(model, xla)
        torch.manual_seed(2)  # of dropout
        losses.append([float(graph(x, y)) for x, y in batches])
        graphs.append(graph)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    ours, theirs = (dict(g.model.named_parameters()) for g in graphs)
    for key, value in ours.items():
        torch.testing.assert_close(theirs[key], value, rtol=2e-3, atol=1e-3)
    (call,) = calls_of(graphs[1])
    written = [r for r in call.step.outputs if r.place.space == "arg"]
    assert len(written) >= 3 * len(ours)  # parameters and two moments each, where they lie
    assert call.copies.operands == 0
    loss = sum(r.type.nbytes for r in call.step.outputs if r.place.space == "result")
    assert loss == 4  # it stays in XLA's memory
    assert call.copies.results == sum(r.type.nbytes for r in call.step.outputs) - loss
    (region,) = graphs[1].explain().engines
    assert region.copied == region.written - loss == call.copies.results


class Between(nn.Graph):
    """A call of PyTorch's that no form has stands in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.config.enable_xla_jit()

    def build(self, x: Tensor) -> Tensor:
        y = torch.tanh(x @ x.mT) + 64 * torch.eye(x.shape[0])
        return torch.exp(-(torch.linalg.inv(y) @ x).square()).sum(0)


def test_what_an_engine_cannot_have_stays() -> None:
    graph = Between()
    x = torch.randn(64, 64)
    want = torch.exp(
        -(torch.linalg.inv(torch.tanh(x @ x.mT) + 64 * torch.eye(64)) @ x).square()
    ).sum(0)
    torch.testing.assert_close(graph(x), want, rtol=1e-4, atol=1e-4)
    assert len(calls_of(graph)) == 2
    report = graph.explain()
    assert len(report.engines) == 2
    assert any("linalg_inv" in s.op and "a call into PyTorch" in s.why for s in report.stayed)
    assert "By xla:" in str(report)
    assert "Stayed with gflow" in str(report)


def test_strided_and_unaligned_operands_are_copied() -> None:
    graph = Between()
    memory = torch.randn(64 * 64 + 1)
    x = memory[1:].reshape(64, 64)
    first = graph(x).clone()
    assert sum(call.copies.operands for call in calls_of(graph)) >= x.nbytes
    torch.testing.assert_close(graph(x.clone()), first)


def test_a_check_comes_first_and_leaves_all_as_it_was() -> None:
    graph = Train(mlp, True)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    graph(x, y)
    before = [
        p.detach().clone() for p in graph.model.parameters()
    ]  # fmt: skip
    with pytest.raises(IndexError):
        graph(x, y + 7)
    for p, old in zip(graph.model.parameters(), before):
        assert torch.equal(p, old)


def test_saved_graph_runs(tmp_path: Path) -> None:
    graph = Train(mlp, True)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    graph(x, y)
    flow.save(graph, tmp_path / "model")
    loaded = flow.load(tmp_path / "model")
    assert any(
        isinstance(s, EngineStep)
        for p in [graph._checked().latest.compiled.program]
        for s in p.steps
    )
    torch.manual_seed(3)
    want = float(graph(x, y))
    torch.manual_seed(3)
    assert float(loaded(x, y)) == pytest.approx(want, rel=1e-4)


class Several(nn.Module):
    """A result that another step reads, too, one twice, one that is an argument, a view, and an update."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("total", torch.zeros(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.layer(x)) + 64 * torch.eye(64)
        z = torch.exp(-(torch.linalg.inv(y) @ x).square())
        self.total += z
        return y, z, z, x, z.sum(), (z * 2)[:, :8], z > 0.5


def test_results_stay_in_the_memory_of_xla() -> None:
    """They belong to the caller: no call overwrites them, and no write to them changes a call."""
    torch.manual_seed(0)
    module, beside = Several(), Several()
    beside.load_state_dict(module.state_dict())
    graph, calls = Predict(module, "xla_jit"), []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(64, 64)
            calls.append((graph(x), [r.clone() for r in beside(x)]))
        for found, want in calls:
            torch.testing.assert_close([*found], want, rtol=1e-4, atol=1e-4)
        for found in calls[-1][0][:3]:
            found.fill_(7)
        torch.testing.assert_close([*graph(x)], [*beside(x)], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.total, beside.total, rtol=1e-4, atol=1e-4)
    copied = sum(call.copies.results for call in calls_of(graph))
    assert 0 < copied < sum(r.written for r in graph.explain().engines)


def test_switching_off() -> None:
    graph = Between()
    x = torch.randn(64, 64)
    graph(x)
    graph.config.enable_xla_jit(False)
    graph(x)
    assert not calls_of(graph)
    assert not graph.explain().engines


class Predict(nn.Graph):
    def __init__(self, model: nn.Module, engine: str) -> None:
        super().__init__()
        self.model = model
        if engine:
            getattr(self.config, f"enable_{engine}")()

    def build(self, x: Tensor) -> Tensor:
        return self.model(x)


@pytest.mark.parametrize("engine", ["xla_jit", "onnxruntime", "openvino"])
@pytest.mark.parametrize("name", list(MODELS))
def test_inference(name: str, engine: str) -> None:
    if not available(engine.removesuffix("_jit")):
        pytest.skip(f"{engine} is not installed")
    model, data = MODELS[name]
    torch.manual_seed(0)
    module = model().eval()
    x = data()
    graph = Predict(module, engine)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-4)
    assert calls_of(graph)
    if engine != "xla_jit":
        assert {(c.copies.operands, c.copies.results) for c in calls_of(graph)} == {(0, 0)}


def _told(attached: list[int], attach: Callable[..., None], n: int, x: Tensor) -> None:
    attached.append(n)
    attach(n, x)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_memory_stays_attached(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call attaches what has moved alone, and all memory for another size."""
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    torch.manual_seed(0)
    module = mlp().eval()
    graph = Predict(module, engine)
    sizes = [flow.dynamic_dim(torch.randn(n, 16), 0, max=8) for n in (8, 8, 4)]
    calls = [0, 1, 1, 2, 0, 2, 1, 1]
    with torch.no_grad():
        found = [graph(sizes[n]) for n in calls]  # kept, so that each result lies elsewhere
        for n, out in zip(calls, found):
            torch.testing.assert_close(out, module(sizes[n]), rtol=1e-4, atol=1e-5)
        (code,) = {call._model._code for call in calls_of(graph)}
        attached: list[int] = []
        for kind in ("operand", "result"):
            told = partial(_told, attached, getattr(code, kind))
            monkeypatch.setattr(code, kind, told)
        kept = []
        for change, count in ((None, 9), (None, 2), (module[0].weight, 3)):
            attached.clear()
            if change is not None:
                change.data = change.data / 2
            x = flow.dynamic_dim(torch.randn(6, 16), 0, max=8)
            kept.append((x, graph(x)))
            torch.testing.assert_close(kept[-1][1], module(x), rtol=1e-4, atol=1e-5)
            assert len(attached) == count
        if engine == "onnxruntime":  # places of results are known again, and hold no memory
            del found, kept, out
            places = [code._places.copy()]
            for _ in range(2):
                for n in range(8):
                    graph(sizes[n % 3])
                places.append(code._places.copy())
            assert places[1] == places[2]
            assert len(places[1]) <= 16


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_onnx_file(name: str, tmp_path: Path) -> None:
    """Loaded by the engines' own tools."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    openvino = pytest.importorskip("openvino")
    model, data = MODELS[name]
    module = model().eval()
    graph, x = Predict(module, ""), data()
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        want = graph(x)
        flow.save(graph, path, format="onnx")
    onnx.checker.check_model(str(path), full_check=True)
    names = {i.name for i in onnx.load(path).graph.initializer}
    assert {f"model.{k}" for k, _ in module.named_parameters()} <= names
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), want, rtol=1e-4, atol=1e-4)
    core = openvino.Core()
    read = core.read_model(path)
    run = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = torch.from_numpy(run([x.numpy()])[0].copy())
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_frozen_weights_are_constants(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model that the engine compiles; it compiles again after a change."""
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    module, x = mlp().eval(), torch.randn(8, 16)
    graph = Predict(module, engine)
    graph.config.freeze()
    with torch.no_grad():
        for change in (lambda p: p, lambda p: p.mul_(1.5), lambda p: p.data.add_(0.1)):
            for p in module.parameters():
                change(p)
            for _ in range(2):
                torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-5)
        views: list[int] = []
        view = frames.view_tensor
        monkeypatch.setattr(frames, "view_tensor", lambda *args: [views.append(0), view(*args)][1])
        graph(torch.randn(8, 16))
        assert len(views) <= 2  # the input and the result alone: a view takes a microsecond
        module[0].weight = torch.nn.Parameter(torch.randn(32, 16))
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-5)
    (call,) = calls_of(graph)
    assert len(call.step.frozen) == len(list(module.parameters()))


@pytest.mark.parametrize("engine", [["XLA", "OPENVINO"], "onnxruntime"])
def test_module_by_an_engine(engine: Any) -> None:
    """Results and gradients of a module in an eager program are eager's."""
    names = [engine] if isinstance(engine, str) else engine
    if not available(names[0].lower()):
        pytest.skip(f"{names[0]} is not installed")
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    wrapped, x = flow.XRTModule(module, engine=engine), torch.randn(8, 16)
    want = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    wrapped(x).square().sum().backward()
    for p, w in zip(module.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, w, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-4, atol=1e-5)
    assert calls_of(wrapped._runner.program)


def test_modules_by_engines_that_cannot_be() -> None:
    module = nn.Linear(4, 4)
    with pytest.raises(flow.GraphError, match=r"XRTModule\(\) takes engine='XLA'.*got 'TVM'"):
        flow.XRTModule(module, engine="TVM")
    wrapped = flow.XRTModule(module)
    with pytest.raises(Exception, match=r"torch\.compile cannot give a part"):
        torch.compile(lambda x: wrapped(x), backend="eager")(torch.randn(2, 4))
    graph = Predict(wrapped, "")
    graph.config.freeze()
    with (
        torch.no_grad(),
        pytest.raises(flow.GraphError, match="model is an XRTModule; use the module itself"),
    ):
        graph(torch.randn(2, 4))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_results_without_elements(engine: str) -> None:
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    graph, x = Predict(Ends(), engine), torch.randn(256, 256) / 16
    with torch.no_grad():
        for found, want in zip(graph(x), Ends()(x), strict=True):
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert calls_of(graph)


class Ends(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x @ x)
        return y @ y, y[:0] @ y


class Parted(nn.Graph):
    """A part of the model is an engine's, perhaps the rest another's."""

    def __init__(self, engine: str, switch: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
        self.model = nn.Sequential(nn.Linear(16, 32), part, nn.ReLU(), nn.Linear(64, 4))
        if engine:
            self.model.to(nn.Module)[1] = flow.XRTModule(part, engine=engine)
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-2))
        if switch:
            getattr(self.config, switch)()

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize(
    ("engine", "switch"), [("xla", ""), ("onnxruntime", ""), ("openvino", "enable_xla_jit")]
)
def test_a_part_of_a_graph_by_an_engine(engine: str, switch: str) -> None:
    """Its forward and backward, trained as without; the rest, updates too, is the graph's."""
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    torch.manual_seed(1)
    batches = [(torch.randn(64, 16), torch.randint(0, 4, (64,))) for _ in range(3)]
    losses = []
    for graph in (Parted(""), Parted(engine, switch)):
        losses.append([float(graph(x, y)) for x, y in batches])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    labels = [c.label for c in calls_of(graph) if c.step.engine == engine]
    assert len(labels) == 2
    found = [name.split(":") for label in labels for name in re.findall(r'"(\w+:[\w.]*)"', label)]
    assert {phase for phase, _ in found} == {"forward", "backward"}
    assert all(module.startswith("model.1.") for _, module in found)
    engines = {r.engine for r in graph.explain().engines}
    assert engines == ({engine, "xla"} if switch else {engine})


def test_a_part_of_a_compiled_module_by_an_engine() -> None:
    """`gflow.compile` around it, and itself: results and gradients."""
    part = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    module = nn.Sequential(nn.Linear(16, 64), part)
    whole = nn.Sequential(module[0], flow.XRTModule(part))
    for compiled, eager in ((flow.compile(whole), module), (flow.compile(whole[1]), part)):
        x = torch.randn(32, eager[0].in_features)
        want = torch.autograd.grad(eager(x).square().sum(), list(eager.parameters()))
        got = torch.autograd.grad(compiled(x).square().sum(), list(compiled.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-4)
        assert calls_of(compiled._runner.program)


@pytest.mark.parametrize("offset", [4, 16])
def test_xla_reads_parameters_that_change_in_place(offset: int) -> None:
    """XLA's buffers of parameters are kept between calls: at any alignment they read the memory, and hold no copy."""
    pytest.importorskip("jaxlib")
    memory = torch.randn(offset + 48 * 48 + 16)
    first = (-(memory.data_ptr() // 4)) % 16 + offset  # elements from a multiple of 64 bytes
    weight = nn.Parameter(memory[first : first + 40 * 40].view(40, 40))
    scale, bias = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(3))

    class Product(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.config.enable_xla_jit()

        def build(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(x @ weight) * scale, bias.exp() @ x[:3]

    graph = Product()
    for _ in range(4):
        x = torch.randn(8, 40)
        with torch.no_grad():
            found, wanted = graph(x), (torch.tanh(x @ weight) * scale, bias.exp() @ x[:3])
            for p in (weight, scale, bias):
                p.mul_(1.25)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

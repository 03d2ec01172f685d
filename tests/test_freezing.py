"""`config.freeze()`: what follows from parameters alone is computed once, and again after each change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow
from gflow.compiler import CompileOptions
from gflow.errors import GraphError
from gflow.execution.programs import check as check_programs
from gflow.execution.programs import from_bytes, to_bytes
from gflow.runtime.composed.frozen import Frozen
from gflow.runtime.stored.program_io import ProgramError


class Infer(flow.nn.Graph):
    def __init__(self, module: nn.Module, freeze: bool = True) -> None:
        super().__init__()
        self.module = module
        self.config.freeze(freeze)

    def build(self, x: Tensor) -> Any:
        return self.module(x)


def run_of(graph: Infer) -> Frozen:
    latest = graph._state.latest
    assert latest is not None
    run = latest.compiled.run
    assert isinstance(run, Frozen)
    return run


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(16, 3, 8, 8) + 1)
    return net.eval()


def check(graph: Callable[..., Tensor], net: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        want = copy.deepcopy(net).double()(x.double())
        torch.testing.assert_close(graph(x).double(), want, rtol=1e-4, atol=1e-5)


def test_batch_norm_and_layouts_are_computed_once() -> None:
    net = network()
    graph, plain = Infer(net), Infer(net, False)
    for rows in (4, 4, 2):
        check(graph, net, torch.randn(rows, 3, 8, 8))
    plain(torch.randn(4, 3, 8, 8))
    run = run_of(graph)
    assert run.constants.runs == 1
    names = set(run.constants.names)
    assert {"module.0.weight", "module.1.running_var", "module.3.bias"} <= names
    assert not any(name.startswith("module.6") for name in names)
    assert "frozen" in str(graph.explain()).lower()
    assert plain._state.latest is not None
    assert len(run.program.steps) < len(plain._state.latest.compiled.program.steps)
    for plan in graph._state.plans:  # of both sizes
        assert isinstance(plan.compiled.run, Frozen)
        assert plan.compiled.run.constants is run.constants


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "in place": lambda net: net[0].weight.mul_(1.5),
    "a buffer": lambda net: net[1].running_mean.add_(1),
    "load_state_dict": lambda net: net.load_state_dict(
        {k: v * 2 for k, v in net.state_dict().items()}
    ),
    "other memory": lambda net: setattr(net[0].weight, "data", torch.randn(8, 3, 3, 3)),
    "past the version counter": lambda net: net[3].weight.data.mul_(-1),
    "NumPy": lambda net: net[1].running_var.numpy().__imul__(3),
    "another parameter": lambda net: setattr(
        net[0], "weight", nn.Parameter(torch.ones(8, 3, 3, 3))
    ),
    "read at each call": lambda net: net[6].weight.data[0, 0].add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str) -> None:
    net = network()
    graph, x = Infer(net), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        before = graph(x)
        torch.testing.assert_close(before, net(x), rtol=1e-4, atol=1e-5)
        CHANGES[name](net)
        want, got = net(x), graph(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(before, want, rtol=1e-3, atol=1e-4)
        constants = run_of(graph).constants
        runs = constants.runs
        graph(x)
    assert constants.runs == runs


def test_an_optimizer_outside_changes_weights() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    graph, x = Infer(net), torch.randn(2, 3, 8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(3):
        net(x).square().mean().backward()
        optimizer.step()
        check(graph, net, x)


def test_equal_networks_have_constants_of_their_own() -> None:
    nets = [network(), network()]
    with torch.no_grad():
        nets[1][0].weight.neg_()
    graphs, x = [Infer(net) for net in nets], torch.randn(2, 3, 8, 8)
    for _ in range(2):
        for net, graph in zip(nets, graphs):
            torch.testing.assert_close(graph(x), net(x), rtol=1e-4, atol=1e-5)
    assert [run_of(graph).constants.runs for graph in graphs] == [1, 1]


class Updates(nn.Module):
    """A buffer that each call changes, next to weights whose product does not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6, 3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x @ (self.a @ self.b) + torch.exp(self.count)


def test_what_a_graph_updates_is_not_frozen() -> None:
    module = Updates()
    graph, x = Infer(module), torch.randn(2, 4)
    for n in range(1, 4):
        want = x @ (module.a @ module.b) + torch.exp(torch.tensor(float(n)))
        torch.testing.assert_close(graph(x), want.detach())
    assert module.count.tolist() == [3.0] * 3
    run = run_of(graph)
    assert run.constants.runs == 1
    assert run.constants.names == ("module.a", "module.b")
    told = graph.explain().frozen
    assert told is not None
    assert told.unfrozen == {"module.count": "the graph updates it"}
    assert "module.count" in str(graph.explain())


def test_inference_tensors_are_read_at_each_call() -> None:
    module = nn.Linear(4, 3, bias=False)
    with torch.inference_mode():
        module.weight = nn.Parameter(torch.randn(3, 4), requires_grad=False)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.exp(self.inner.weight).T

    graph, x = Infer(Twice()), torch.randn(2, 4)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(graph(x), x @ torch.exp(module.weight).T)
            module.weight.mul_(-1)
    told = graph.explain().frozen
    assert told is not None
    assert "inference_mode" in told.unfrozen["module.inner.weight"]


def test_a_range_of_sizes() -> None:
    net = network()
    graph = Infer(net)
    for rows in (2, 3, 5, 7, 3):
        x = torch.randn(rows, 3, 8, 8)
        torch.testing.assert_close(graph(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(graph._state.plans) == 2
    assert run_of(graph).constants.runs == 1


def test_halves_are_made_once() -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    graph = Infer(net)
    graph.config.enable_amp(dtype=torch.bfloat16)
    x = torch.randn(8, 16)
    torch.testing.assert_close(graph(x), net(x).detach(), rtol=0.05, atol=0.05)
    types = {r.type.dtype for r in run_of(graph).constants.program.results}
    assert types == {"bf16"}
    assert not any(a.name.endswith("weight") for a in run_of(graph).program.arguments)


def test_nothing_to_compute() -> None:
    graph, x = Infer(nn.Linear(4, 3)), torch.randn(2, 4)
    torch.testing.assert_close(graph(x), graph.module(x).detach())
    told = graph.explain().frozen
    assert told is not None
    assert told.results == 0
    assert set(told.read) == {"module.weight", "module.bias"}


def test_training_is_refused() -> None:
    net = nn.Linear(4, 3)
    graph = Infer(net)
    with pytest.raises(GraphError, match=r"test_freezing.*freeze\(\) is for inference"):
        graph.add_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    graph = Infer(net, False)
    graph.add_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(GraphError, match=r"freeze\(\) is for inference"):
        graph.config.freeze()
    with pytest.raises(GraphError, match="takes True or False"):
        graph.config.freeze("yes")  # type: ignore[arg-type]


def test_engines_are_refused() -> None:
    from gflow.compiler.driver.pipelines import PipelineOptions

    graph = Infer(nn.Linear(4, 3))
    graph.config.compile_options = CompileOptions(passes=PipelineOptions(engine="xla"))
    with pytest.raises(GraphError, match="not for xla"):
        graph(torch.randn(2, 4))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("config", [True, False])
def test_saved_frozen(config: bool, native: bool, tmp_path: Path) -> None:
    net, x = network(), torch.randn(2, 3, 8, 8)
    graph = Infer(net, config)
    want = graph(x)
    flow.save(graph, tmp_path / "frozen", frozen=None if config else True)
    with torch.no_grad():
        net[0].weight.mul_(2)  # what is saved is saved
    loaded = flow.load(tmp_path / "frozen", native=native)
    torch.testing.assert_close(loaded(x), want, rtol=1e-4, atol=1e-5)
    assert loaded.frozen
    extra = loaded._weights["extra"].values()  # whole vectors of them are read
    assert extra
    assert not any(t.data_ptr() % 64 for t in extra)
    kept = {a.name for v in loaded._variants for a in v.programs[0].arguments}
    assert "module.6.weight" in kept
    assert not any(name.startswith("module.0") for name in (*kept, *loaded._weights["extra"]))
    with pytest.raises(ValueError, match="saved frozen"):
        loaded.state_dict()
    flow.save(loaded, tmp_path / "again")
    torch.testing.assert_close(flow.load(tmp_path / "again")(x), want, rtol=1e-4, atol=1e-5)


def test_saved_with_its_parameters(tmp_path: Path) -> None:
    net, x = network(), torch.randn(2, 3, 8, 8)
    graph = Infer(net)
    want = graph(x)
    flow.save(graph, tmp_path / "whole", frozen=False)
    loaded = flow.load(tmp_path / "whole")
    torch.testing.assert_close(loaded(x), want, rtol=1e-4, atol=1e-5)
    assert "module" in loaded.state_dict()
    torch.testing.assert_close(graph(x), want)  # the graph is as it was
    assert run_of(graph).constants.runs == 1


def test_training_graphs_are_not_saved_frozen(tmp_path: Path) -> None:
    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)
            self.add_optimizer(torch.optim.SGD(self.net.parameters(), lr=0.1))

        def build(self, x: Tensor) -> Tensor:
            loss = self.net(x).sum()
            loss.backward()
            return loss

    graph = Train()
    graph(torch.randn(2, 4))
    with pytest.raises(GraphError, match="for inference"):
        flow.save(graph, tmp_path / "no", frozen=True)
    with pytest.raises(TypeError, match="frozen"):
        flow.save(graph, tmp_path / "no.onnx", format="onnx", frozen=True)


def test_programs_as_bytes() -> None:
    from gflow.compiler import Programs

    net = network()
    graph = Infer(net)
    graph(torch.randn(2, 3, 8, 8))
    run = run_of(graph)
    made = Programs(run.program, run.constants.program, run.given, run.reads)
    check_programs(made)
    data = to_bytes(made, True)
    assert from_bytes(data) == from_bytes(data, checked=True) == (made, True)
    alone = Programs(run.program)
    assert from_bytes(to_bytes(alone, False)) == (alone, False)
    for damaged in (
        data[:8],
        data[:-1],
        to_bytes(Programs(run.program, run.program, run.given, ()), False),
    ):
        with pytest.raises(ProgramError):
            from_bytes(damaged)
    with pytest.raises(ProgramError):
        check_programs(replace(alone, main=replace(run.program, arena_bytes=-1)))

"""`gflow.nn.Graph` as its users see it."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from typing import Any

import pytest
import torch
from call_count import calls

import gflow as flow
from gflow import nn


class Call(nn.Graph):
    """A graph of one function."""

    def __init__(self, function: Any, *modules: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = modules

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def plans(graph: nn.Graph) -> int:
    return sum(len(p) for p in graph._state.plans.values())


def test_names_count_up() -> None:
    class CountedOnlyHere(nn.Graph):
        def build(self) -> None:
            return None

    first, second = CountedOnlyHere(), CountedOnlyHere()
    assert (first.name, second.name) == ("CountedOnlyHere_0", "CountedOnlyHere_1")


def test_nested_inputs_and_outputs() -> None:
    def function(batch: Any, *, scale: float, extra: Any = None) -> Any:
        a, (b, c) = batch["a"], batch["rest"]
        assert extra is None
        return {"sum": a + b, "list": [c * scale, None, ("text", 3)], "same": a}

    graph = Call(function)
    a, b, c = torch.randn(3, 2)
    out = graph({"a": a, "rest": [b, c]}, scale=2.0, extra=None)
    assert list(out) == ["sum", "list", "same"]
    torch.testing.assert_close(out["sum"], a + b)
    torch.testing.assert_close(out["list"][0], c * 2)
    assert out["list"][1:] == [None, ("text", 3)]
    torch.testing.assert_close(out["same"], a)


def test_one_program_per_signature() -> None:
    graph = Call(lambda x, power=1: x**power)
    x = torch.randn(3)
    graph(x)
    graph(torch.randn(3))
    assert plans(graph) == 1
    for other in (torch.randn(4), x.double(), torch.randn(3, 2)[:, 0]):
        torch.testing.assert_close(graph(other), other)
    assert plans(graph) == 4
    torch.testing.assert_close(graph(x, power=3), x**3)
    torch.testing.assert_close(graph(x, power=2), x**2)
    torch.testing.assert_close(graph(x, 2.0), x**2)
    assert plans(graph) == 7


def test_train_and_eval_mode() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    other = copy.deepcopy(model)
    graph = Call(lambda x: model(x), model)
    x = torch.randn(8, 3)
    graph(x)
    other(x)
    torch.testing.assert_close(model[0].running_mean, other[0].running_mean)
    model.eval(), other.eval()
    torch.testing.assert_close(graph(x), other(x).detach())
    model[0].train(), other[0].train()
    torch.testing.assert_close(graph(x), other(x).detach())
    torch.testing.assert_close(model[0].running_var, other[0].running_var)


def test_mutated_input() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    graph = Call(function)
    x, y = torch.zeros(3), torch.full((3,), 2.0)
    for step in (1, 2):
        torch.testing.assert_close(graph(x, y), torch.full((3,), 2.0 * step))
        torch.testing.assert_close(x, torch.full((3,), float(step)))
    z = torch.ones(3)
    torch.testing.assert_close(graph(z, z), torch.full((3,), 4.0))
    whole = torch.zeros(4)
    with pytest.raises(flow.GraphInputError, match="shares memory"):
        graph(whole[:3], whole[1:])


def test_views_aliases_and_empty_tensors() -> None:
    graph = Call(lambda x, y: (x, x[0], y.t(), x.sum()))
    x, y = torch.randn(2, 3).t(), torch.randn(3, 0)
    out = graph(x, y)
    for a, b in zip(out, (x, x[0], y.t(), x.sum())):
        torch.testing.assert_close(a, b)
    assert out[0] is x
    out[1].zero_()
    assert not x[0].any()
    same = graph(x, x)
    torch.testing.assert_close(same[2], x.t())
    expanded = torch.ones(1, 3).expand(4, 3)
    torch.testing.assert_close(graph(expanded, y)[3], torch.tensor(12.0))


def test_parameters_are_the_modules_own() -> None:
    model = torch.nn.Linear(3, 2)
    graph = Call(lambda x: model(x), model)
    x = torch.randn(4, 3)
    graph(x)
    with torch.no_grad():
        model.weight.mul_(3)
    torch.testing.assert_close(graph(x), model(x).detach())
    model.weight.data = torch.randn(2, 3)
    torch.testing.assert_close(graph(x), model(x).detach())
    model.weight = torch.nn.Parameter(torch.randn(2, 3))
    torch.testing.assert_close(graph(x), model(x).detach())
    model.double()
    torch.testing.assert_close(graph(x.double()), model(x.double()).detach())


def test_submodules_may_be_replaced_and_added() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    graph = Call(lambda x: model(x), model)
    x = torch.randn(4, 3)
    graph(x)
    model[0][0] = torch.nn.Linear(3, 2)
    torch.testing.assert_close(graph(x), model(x).detach())
    model[0].append(torch.nn.Tanh())
    torch.testing.assert_close(graph(x), model(x).detach())
    del model[0][1]
    torch.testing.assert_close(graph(x), model(x).detach())


def test_module_assigned_later() -> None:
    graph = Call(lambda x: graph.function_module(x))
    graph.function_module = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2)
    graph(x)
    graph.function_module = torch.nn.Linear(2, 2)
    torch.testing.assert_close(graph(x), graph.function_module(x).detach())


def test_grad_mode_and_autocast() -> None:
    model = torch.nn.Linear(4, 4)
    graph = Call(lambda x: (model(x), torch.is_grad_enabled()), model)
    x = torch.randn(2, 4)
    assert graph(x)[1] is True
    with torch.no_grad():
        assert graph(x)[1] is False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert graph(x)[0].dtype == torch.bfloat16
    assert graph(x)[0].dtype == torch.float32


def test_randomness_follows_the_seed() -> None:
    def masks() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Dropout(0.5)
        graph = Call(lambda x: (model(x), torch.rand_like(x)), model)
        return [t for _ in range(3) for t in graph(torch.ones(1000))]

    first, second = masks(), masks()
    for a, b in zip(first, second):
        assert torch.equal(a, b)
    for later in first[2:]:
        assert not torch.equal(later, first[0])
        assert not torch.equal(later, first[1])
    assert 400 < int((first[0] == 2).sum()) < 600
    assert first[1].mean() == pytest.approx(0.5, abs=0.05)


def test_training_with_scheduler_steps_it() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = flow.optim.SGD(model.parameters(), lr=1.0)
    scheduler = flow.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.loss = nn.MSELoss(reduction="sum")
            self.add_optimizer(optimizer, lr_sch=scheduler)

        def build(self, x: Any, y: Any) -> Any:
            loss = self.loss(self.model(x), y)
            loss.backward()
            return loss

    graph = Train()
    for expected in (1.0, 0.1, 0.1):
        graph(torch.randn(2, 3), torch.randn(2, 1))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    assert repr(graph).startswith("(GRAPH:Train_")


def test_batch_norm_training_matches_eager() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    model, other = make(), make()
    optimizer, reference = (torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (model, other))

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any, y: Any) -> Any:
            logits = self.model(x)
            loss = nn.functional.cross_entropy(logits, y, label_smoothing=0.1)
            loss.backward()
            return loss, logits

    graph = Train()
    for _ in range(5):
        x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
        loss, logits = graph(x, y)
        expected_logits = other(x)
        expected = nn.functional.cross_entropy(expected_logits, y, label_smoothing=0.1)
        reference.zero_grad()
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(logits, expected_logits.detach())
        assert not loss.requires_grad
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(
            a, b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_a_hot_call_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    from gflow.execution import executor

    def nothing(trace: Any, options: Any) -> executor.Compiled:
        return executor.Compiled(lambda args: [args[0]], False)

    monkeypatch.setattr("gflow.execution.executor.compile_trace", nothing)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(20)])
    graph = Call(lambda x: model(x), model)
    x = torch.randn(2, 4)
    graph(x)
    graph(x)  # the first call for which guards hold notes by which numbers later ones tell
    assert calls(lambda: graph(x)) < 300


@pytest.mark.slow
def test_tracing_grows_linearly() -> None:
    from function_trace import trace_graph

    def work(depth: int) -> int:
        model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(depth)])
        optimizer = torch.optim.AdamW(model.parameters())
        return calls(
            lambda: trace_graph(
                "t",
                lambda x: model(x).sum().backward(),
                (torch.randn(2, 4),),
                {},
                {"m": model},
                [optimizer],
            )
        )

    work(4)
    assert work(64) < 1.2 * 4 * work(16)


def test_name_training_and_is_compiled() -> None:
    class OnlyHere(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).sum()
            if self.training:
                loss.backward()
            return loss

    first, second = OnlyHere(), OnlyHere()
    assert (first.name, second.name) == ("OnlyHere_0", "OnlyHere_1")
    assert not first.training
    assert not first.is_compiled
    first(torch.ones(1, 2))
    assert first.is_compiled
    first.add_optimizer(torch.optim.SGD(first.model.parameters(), 0.1))
    assert first.training
    assert not first.is_compiled
    before = first.model.weight.clone()
    first(torch.ones(1, 2))
    assert not torch.equal(first.model.weight, before)


def test_graphs_do_not_nest() -> None:
    class Inner(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Outer(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x=x) if x.dim() else self.inner(x)

    for x in (torch.ones(2), torch.tensor(1.0)):
        with pytest.raises(
            flow.GraphError, match=r"Inner_\d+ is called inside build\(\) of a graph"
        ):
            Outer()(x)


def test_config_that_changes_compiles_again() -> None:
    class Net(flow.nn.Graph):
        def build(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ w) + x

    graph = Net()
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    want = graph(x, w)
    assert 'kind = "contraction"' in graph.ir(generic=True)
    graph.config.allow_fuse_add_to_output(True)
    graph.config.allow_fuse_add_to_output(False)
    assert not graph.is_compiled
    torch.testing.assert_close(graph(x, w), want)
    assert 'kind = "contraction"' not in graph.ir(generic=True)
    with pytest.raises(
        flow.GraphError, match="has no setting 'enable_ampp'; did you mean enable_amp"
    ):
        graph.config.enable_ampp = True
    with pytest.raises(flow.GraphError, match="takes True or False"):
        graph.config.allow_fuse_cast_scale(1)  # type: ignore[arg-type]


def test_a_function_as_a_graph() -> None:
    @flow.nn.Graph.trace
    def doubled(x: torch.Tensor, offset: float = 0.0) -> torch.Tensor:
        return 2 * x + offset

    assert isinstance(doubled, flow.nn.Graph)
    assert re.fullmatch(r"doubled_graph_\d+", doubled.name)
    assert doubled(torch.ones(2), offset=1.0).tolist() == [3, 3]
    with pytest.raises(flow.GraphError, match=r"test_graph.py:\d+: Graph.trace takes a function"):
        flow.nn.Graph.trace(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_graph_in_build_without_tensors() -> None:
    """There is no traced argument to tell by."""

    class Ones(flow.nn.Graph):
        def build(self) -> torch.Tensor:
            return torch.ones(3)

    class Outer(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return Ones()() + x

    with pytest.raises(flow.GraphError, match="graphs don't nest"):
        Outer()(torch.ones(3))


def test_graphs_over_one_model_in_several_threads() -> None:
    """A build exchanges what modules hold, so one is built at a time."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    expected = model(x)

    class Scaled(flow.nn.Graph):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.model, self.factor = model, factor

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x) * self.factor

    results: dict[int, torch.Tensor] = {}

    def run(factor: int) -> None:
        results[factor] = Scaled(factor)(x)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for factor in range(4):
        torch.testing.assert_close(results[factor], expected * factor)


def test_copies_are_refused() -> None:
    graph = Call(lambda x: x)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(
            flow.GraphError, match=r"cannot be copied or pickled. Make another over"
        ):
            way(graph)


def test_compiling_before_the_first_call() -> None:
    """OneFlow's `_compile`: a program, and no step of a training graph."""
    model = torch.nn.Linear(3, 1)
    before = copy.deepcopy(model.state_dict())

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.Adam(model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph, x = Train(), torch.randn(4, 3)
    state = graph.state_dict()
    graph._compile(x)
    assert graph.is_compiled
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    with pytest.raises(flow.GraphError, match="before the first call"):
        graph.load_state_dict(state)
    losses = [graph(x).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert len(graph._state.plans.values()) == 1


def test_keys_of_groups_that_no_optimizer_reads() -> None:
    model = torch.nn.Linear(3, 1)
    group = {"params": list(model.parameters()), "do_bias_correction": True}
    graph = nn.Graph()
    graph.add_optimizer(torch.optim.AdamW([group]))
    with pytest.raises(flow.GraphError, match=r"test_graph.py:\d+: .*do_bias_correction=False"):
        graph.add_optimizer(torch.optim.AdamW([group | {"do_bias_correction": False}]))


def test_updates_are_seen_by_eager_backward_passes() -> None:
    """As in eager mode, a backward pass whose saved tensors were updated since is an error."""
    model, x = torch.nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)

    class Update(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.model.weight.mul_(2)
            return y.add_(1)

    graph = Update()
    y = torch.ones(2)
    graph(y)  # compiles
    loss, square = model(x).sum(), (y * torch.ones(2, requires_grad=True)).sum()
    versions = [model.weight._version, y._version, model.bias._version]
    graph(y)
    after = [model.weight._version, y._version, model.bias._version]
    assert [b - a for a, b in zip(versions, after)] == [1, 1, 0]
    for result in (loss, square):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()

"""Calls of one graph with other signatures: the cache of programs, one arena, graphs that share."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn


class Call(nn.Graph):
    """A graph of one function."""

    def __init__(self, function: Any, model: Any = None, optimizer: Any = None) -> None:
        super().__init__()
        self.function, self.model = function, model
        if optimizer is not None:
            self.add_optimizer(optimizer)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def plans(graph: nn.Graph) -> list[Any]:
    return list(graph._state.plans)


def work(x: torch.Tensor) -> torch.Tensor:
    """Something with values that live between steps."""
    y = torch.softmax(x @ x.t(), -1)
    return (y @ torch.sort(y, 0)[0]).softmax(0) + x.mean()


def test_the_program_not_used_for_longest_goes() -> None:
    graph = Call(lambda x: x + 1)
    graph.config.enable_dynamic_shapes(False)
    graph.config.set_cache_size(2)
    a, b, c = (torch.randn(n) for n in (2, 3, 4))
    graph(a), graph(b)
    first, second = plans(graph)
    graph(a)
    graph(c)
    assert first in plans(graph)
    assert second not in plans(graph)
    assert len(plans(graph)) == 2
    torch.testing.assert_close(graph(b), b + 1)
    graph.config.set_cache_size(1)
    assert len(plans(graph)) == 1
    torch.testing.assert_close(graph(a), a + 1)


def test_many_signatures() -> None:
    graph = Call(lambda x: x * 2)
    graph.config.enable_dynamic_shapes(False)
    for n in range(1, 20):
        x = torch.randn(n)
        torch.testing.assert_close(graph(x), x * 2)
    assert len(plans(graph)) == 16


def test_programs_share_one_arena() -> None:
    graph = Call(work)
    graph.config.enable_dynamic_shapes(False)
    sizes = (20, 60, 40, 60, 20)
    for n in sizes * 2:
        x = torch.randn(n, 5)
        torch.testing.assert_close(graph(x), work(x))
    runs = [p.compiled.run for p in plans(graph)]
    assert len(runs) == 3
    assert len({run.arena.data_ptr() for run in runs}) == 1
    assert graph._state.plans.arena.nbytes == max(run.arena_bytes for run in runs)


def test_a_program_that_goes_frees_its_part_of_the_arena() -> None:
    graph = Call(work)
    graph.config.set_cache_size(2)
    for n in (80, 10, 20):
        x = torch.randn(n, 5)
        graph(x)
    arena = graph._state.plans.arena
    assert arena.nbytes == max(p.compiled.run.arena_bytes for p in plans(graph))
    graph.config.set_memory_budget("1GB")
    gc.collect()
    assert not graph.is_compiled
    assert arena.nbytes == 0


def test_training_with_batches_of_several_sizes_shares_state() -> None:
    def make() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters(), 1e-2)

    model, optimizer = make()
    other, reference = make()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    graph = Call(step, model, optimizer)
    for n in (8, 8, 3, 8, 3):
        x = torch.randn(n, 4)
        loss = graph(x)
        expected = other(x).square().mean()
        reference.zero_grad()
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach())
    assert len(plans(graph)) == 2
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)
    assert optimizer.state[model[0].weight]["step"] == 5


def test_train_and_eval_graphs_share() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = work(model(x)).square().sum()
        loss.backward()
        return loss

    train = Call(step, model, torch.optim.SGD(model.parameters(), 0.1))
    train.enable_shared()
    evaluation = Call(lambda x: work(model(x)), model)
    evaluation(torch.randn(3, 4))
    train(torch.randn(9, 4))
    evaluation.share_from(train)
    for n in (3, 50, 9):
        train(torch.randn(9, 4))
        x = torch.randn(n, 4)
        with torch.no_grad():
            expected = work(model(x))
        torch.testing.assert_close(evaluation(x), expected, rtol=1e-5, atol=1e-6)
    runs = [p.compiled.run for g in (train, evaluation) for p in plans(g)]
    assert len({run.arena.data_ptr() for run in runs}) == 1
    assert train._state.plans.arena.nbytes == max(run.arena_bytes for run in runs)
    train.enable_shared(False)
    with pytest.raises(flow.GraphError, match="shares with no other graph"):
        Call(work).share_from(train)
    with pytest.raises(flow.GraphError, match="takes a graph; got Linear"):
        evaluation.share_from(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("shared", [True, False])
def test_with_dynamic_input_shape(shared: bool) -> None:
    class Dynamic(nn.Graph):
        @nn.Graph.with_dynamic_input_shape(enable_shared=shared, size=2)
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def build(self, x: Any) -> Any:
            return work(x) * self.scale

    graph = Dynamic(2.0)
    for n in (3, 8, 20, 8):
        x = torch.randn(n, 3)
        torch.testing.assert_close(graph(x), work(x) * 2)
    assert len(plans(graph)) == 2
    arenas = {p.compiled.run.arena.data_ptr() for p in plans(graph)}
    assert len(arenas) == (1 if shared else 2)


def test_strict_names_the_input_that_differs() -> None:
    class Fixed(nn.Graph):
        def build(self, image: Any, *, batch: Any = None, scale: float = 1.0) -> Any:
            return image * scale + (0 if batch is None else batch["rest"][0])

    graph = Fixed()
    graph.config.set_cache_size(1, strict=True)
    x = torch.randn(2, 3)
    graph(x)

    def message(*args: Any, **kwargs: Any) -> str:
        with pytest.raises(flow.GraphInputError) as caught:
            graph(*args, **kwargs)
        assert __file__ in str(caught.value)
        return str(caught.value)

    found = message(torch.randn(4, 3))
    assert "input 'image' is a tensor of shape [4, 3] and dtype float32" in found
    assert "the graph takes a tensor of shape [2, 3] and dtype float32" in found
    assert "dtype float64, the graph takes" in message(x.double())
    assert "with strides [1, 2], the graph takes" in message(torch.randn(3, 2).t())
    assert "requires grad, the graph takes" in message(x.clone().requires_grad_())
    assert "input 'scale' is 2.0, and the graph has no such input" in message(x, scale=2.0)
    assert "input 'batch.rest.0' is a tensor of shape [3]" in message(
        x, batch={"rest": [torch.randn(3)]}
    )
    torch.testing.assert_close(graph(x), x)
    graph.config.set_cache_size(2, strict=True)
    graph(torch.randn(4, 3))
    assert "shape [4, 5] and dtype float32, the graph takes" in message(torch.randn(4, 5))


def test_strict_where_no_input_differs() -> None:
    model = torch.nn.Dropout()
    graph = Call(lambda x: model(x), model)
    graph.config.set_cache_size(1, strict=True)
    graph(torch.ones(3))
    model.eval()
    with pytest.raises(flow.GraphInputError, match="train or eval mode of a module"):
        graph(torch.ones(3))


def test_a_call_that_fails_says_what_is_new() -> None:
    model = torch.nn.Linear(3, 3)
    graph = Call(lambda x: model(x), model)
    graph(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as caught:
        graph(torch.ones(2, 4))
    if hasattr(caught.value, "__notes__"):  # Python 3.11
        assert any(
            "shape [2, 4] and dtype float32, the graph takes" in n for n in caught.value.__notes__
        )


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "3"])
def test_cache_size_is_checked(size: Any) -> None:
    with pytest.raises(flow.GraphError, match="takes an integer of 1 or more"):
        Call(work).config.set_cache_size(size)

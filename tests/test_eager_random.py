"""Eager's random numbers on request: `config.enable_eager_random()`, `eager_random=True`, Inductor's `fallback_random`.

The oracle is eager itself: from one seed the same numbers, and PyTorch's generator in the same state afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import gflow
from gflow import nn


def _seeded(function: Callable[..., Any], *args: Any, seed: int = 3) -> tuple[Any, torch.Tensor]:
    """The result of a call from a seed, and the state of the generator after it."""
    torch.manual_seed(seed)
    return function(*args), torch.get_rng_state()


def _graph(function: Callable[..., Any]) -> Any:
    class Drawing(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.config.enable_eager_random()

        def build(self, *args: Any) -> Any:
            return function(*args)

    return Drawing()


def _by_dynamo(function: Callable[..., Any], **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="gflow", **options)


WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "graph": _graph,
    "compile": lambda f: gflow.compile(f, eager_random=True),
    "dynamo": _by_dynamo,
    "dynamic": lambda f: _by_dynamo(f, dynamic=True),
}


@pytest.fixture(autouse=True)
def _as_inductors_switch_is() -> Iterator[None]:
    with torch._inductor.config.patch(fallback_random=True):
        yield


def _draws(x: torch.Tensor) -> list[torch.Tensor]:
    """A draw of each kind; some in other orders than row-major, some into views with gaps, one that nothing reads."""
    last = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    part = torch.zeros(8, 9)
    part[:, :5].normal_()
    torch.rand(3)
    part[::2].uniform_(-1, 1)
    return [
        part, F.dropout(x, 0.3), F.dropout(x, 1.0), F.dropout(x, 0.0), F.dropout(x.bfloat16(), 0.1),
        F.alpha_dropout(x, 0.2, True), F.dropout1d(x[:, None], 0.5), F.rrelu(x, 0.1, 0.3, True),
        torch.rand(5, dtype=torch.bfloat16), torch.rand_like(x), torch.rand_like(x.t()),
        torch.rand_like(x, dtype=torch.float64), torch.randn(17, dtype=torch.float64), torch.randn_like(last),
        torch.normal(x, 1.0), torch.normal(0.5, x.abs()), torch.normal(x, x.abs()), torch.normal(0.0, 2.0, (3,)),
        torch.zeros(19).normal_(1, 2), torch.zeros(4).log_normal_(), torch.zeros(4).cauchy_(),
        torch.zeros(9, 9).exponential_(2.0), torch.zeros(6).geometric_(0.3), torch.bernoulli(torch.sigmoid(x)),
        torch.bernoulli(torch.sigmoid(x).t()), torch.zeros(5, 7).t().bernoulli_(0.3),
        torch.zeros(4, 8).bernoulli_(torch.sigmoid(x)), torch.randint(3, (4,)), torch.randint(-5, 2**40, (4,)),
        torch.randint_like(x, 5), torch.zeros(7, dtype=torch.int64).random_(), torch.zeros(7).random_(3, 9),
        torch.randperm(5), torch.poisson(x.abs()), torch.multinomial(torch.softmax(x, -1), 2),
        torch.multinomial(x.t().abs().contiguous() + 0.1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_all_kinds_of_draws_are_eagers(way: str) -> None:
    x = torch.randn(4, 8)
    run = WAYS[way](_draws)
    for seed in (0, 1):
        want, state = _seeded(_draws, x, seed=seed)
        found, after = _seeded(run, x, seed=seed)
        assert [n for n, (w, f) in enumerate(zip(want, found)) if not torch.equal(w, f)] == []
        assert torch.equal(after, state)


class _Net(torch.nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(
                torch.tanh(self.first(F.dropout(x, 0.2, self.training))), 0.5, self.training
            )

        x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.second(x * torch.rand_like(x)).square().mean()


@pytest.mark.parametrize("again", [False, True], ids=["stored", "checkpointed"])
@pytest.mark.parametrize("way", ["graph", "compile", "dynamo"])
def test_a_backward_reads_the_numbers_of_its_forward(way: str, again: bool) -> None:
    torch.manual_seed(0)
    model, x = _Net(again), torch.randn(5, 8, requires_grad=True)

    def step(run: Callable[..., Any]) -> list[torch.Tensor]:
        loss = run(x)
        return [loss, *torch.autograd.grad(loss, [x, *model.parameters()])]

    want, state = _seeded(step, model)
    if way == "graph":
        found, after = _seeded(_graph(lambda x: step(model)), x)
    else:
        found, after = _seeded(step, WAYS[way](model))
    torch.testing.assert_close(found, want)
    assert torch.equal(after, state)


class _Training(nn.Graph):
    def __init__(self, model: torch.nn.Module, micro_batches: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
        self.config.enable_eager_random()
        self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x)
        loss.backward()
        return loss


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_training_graph_follows_eager(micro_batches: int) -> None:
    torch.manual_seed(0)
    model, x = _Net(False), torch.randn(6, 8)
    graph = _Training(copy.deepcopy(model), micro_batches)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        losses = [model(part) / micro_batches for part in x.chunk(micro_batches)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        return torch.stack(losses).sum()

    for seed in range(3):
        (want, state), (found, after) = _seeded(step, x, seed=seed), _seeded(graph, x, seed=seed)
        torch.testing.assert_close(found, want)
        assert torch.equal(after, state)
    torch.testing.assert_close([*graph.model.parameters()], [*model.parameters()])
    assert "random numbers of eager (eager_random)" in str(graph.explain())
    assert "gflow.random" not in graph.ir()


def test_a_saved_graph_draws_eagers_numbers(tmp_path: Any) -> None:
    graph = _graph(lambda x: F.dropout(x) + torch.randn(4))
    x = torch.ones(3, 4)
    want, state = _seeded(graph, x)
    gflow.save(graph, tmp_path / "drawing")
    found, after = _seeded(gflow.load(tmp_path / "drawing"), x)
    assert torch.equal(found, want)
    assert torch.equal(after, state)


def test_a_call_that_fails_draws_nothing() -> None:
    def drawing(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (x * torch.rand(4))[n]

    graph = _graph(drawing)
    graph(torch.ones(4), torch.tensor([1]))
    before = torch.get_rng_state()
    with pytest.raises(IndexError):
        graph(torch.ones(4), torch.tensor([9]))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_eagers_is_refused() -> None:
    p = torch.rand(4, 3).t()
    with pytest.raises(
        gflow.GraphTraceError, match=r"multinomial.*\(eager_random\).*\.contiguous\(\)"
    ):
        _graph(lambda p: torch.multinomial(p, 2))(p)
    with pytest.raises(gflow.GraphError, match=r"enable_eager_random\(\)"):
        _graph(torch.rand_like).config.enable_eager_random("yes")  # type: ignore[arg-type]


def test_without_the_switch_kernels_draw() -> None:
    def drawing(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x)

    class Own(nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return drawing(x)

    graph = Own()
    graph(torch.ones(64))
    assert "gflow.random" in graph.ir()
    assert "gflow.draw" not in graph.ir()

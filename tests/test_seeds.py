"""Random numbers of programs are a function of PyTorch's generator."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow as flow


class Drop(flow.nn.Graph):
    def build(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


class Train(flow.nn.Graph):
    def __init__(self, parts: int = 1) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.model[1].to(flow.nn.graph.GraphModule).activation_checkpointing = True
        self.config.set_gradient_accumulation_steps(parts)
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), 0.0))

    def build(self, x: Tensor) -> Tensor:
        out = self.model(x)
        out.square().mean().backward()
        return out


def _saved(tmp_path: Path) -> Any:
    graph = Drop()
    graph(torch.ones(4, 16))
    flow.save(graph, tmp_path / "graph")
    return flow.load(tmp_path / "graph")


def _gradients(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = function(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # the backward has the forward's mask
    return y.detach()


function = flow.compile(lambda x: F.dropout(x, 0.5))
MAKERS: dict[str, Callable[[Path], Callable[[Tensor], Tensor]]] = {
    "graph": lambda _: Drop(),
    "training": lambda _: Train(),
    "micro-batches": lambda _: Train(2),
    "compile": lambda _: flow.compile(lambda x: F.dropout(x, 0.5)),
    "gradients": lambda _: _gradients,
    "dynamo": lambda _: torch.compile(lambda x: F.dropout(x, 0.5), backend="gflow"),
    "loaded": _saved,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_numbers_after_the_same_seed(kind: str, tmp_path: Path) -> None:
    call = MAKERS[kind](tmp_path)
    x = torch.ones(4, 16)

    def sequence() -> list[Tensor]:
        return [call(x).clone() for _ in range(3)]

    torch.manual_seed(7)
    first = sequence()
    assert len({tuple(t.flatten().tolist()) for t in first}) == 3
    torch.manual_seed(7)
    torch.testing.assert_close(sequence(), first, rtol=0, atol=0)
    call(x)
    torch.manual_seed(7)  # with eager numbers between
    eager = [torch.rand(700), call(x).clone(), torch.rand(3), call(x).clone()]
    sequence()
    torch.manual_seed(7)
    again = [torch.rand(700), call(x).clone(), torch.rand(3), call(x).clone()]
    torch.testing.assert_close(again, eager, rtol=0, atol=0)
    state = torch.get_rng_state()
    first = sequence()
    torch.set_rng_state(state)
    torch.testing.assert_close(sequence(), first, rtol=0, atol=0)
    with torch.random.fork_rng():
        sequence()
    forked = torch.get_rng_state()
    assert torch.equal(forked, torch.get_rng_state())
    torch.manual_seed(8)
    assert not torch.equal(sequence()[0], first[0])


def test_graphs_draw_different_numbers() -> None:
    x = torch.ones(64)
    a, b = Drop(), Drop()
    assert not torch.equal(a(x), b(x))
    torch.manual_seed(3)
    one = [a(x), b(x)]
    torch.manual_seed(3)
    other = [Drop()(x), Drop()(x)]  # compiled for the first time
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_checkpoints_hold_the_generator() -> None:
    x = torch.ones(64, 16)
    torch.manual_seed(1)
    graph = Train()
    graph(x)
    state = copy.deepcopy(graph.state_dict())
    noise = torch.rand(5)
    wanted = [graph(x) for _ in range(2)]
    other = Train()
    other.load_state_dict(state)
    assert torch.equal(torch.rand(5), noise)  # all that draws goes on
    torch.testing.assert_close([other(x) for _ in range(2)], wanted, rtol=0, atol=0)
    # two that go on from one state, and nothing else that draws
    pair = [Train(), Train()]
    for graph in pair:
        graph.load_state_dict(state)
    for _ in range(3):
        results = [graph(x) for graph in pair]
        assert torch.equal(*results)
    torch.manual_seed(5)
    first = pair[0](x)
    assert not torch.equal(pair[1](x), first)  # they draw from one generator again
    torch.manual_seed(5)
    assert torch.equal(pair[1](x), first)


def test_older_checkpoints() -> None:
    graph, other = Drop(), Drop()
    for g in (graph, other):
        g.load_state_dict({**g.state_dict(), "graph.rng": torch.tensor([3, 5])})
    assert torch.equal(graph(torch.ones(64)), other(torch.ones(64)))


def test_a_call_that_fails_draws_nothing() -> None:
    fails = []

    @torch.library.custom_op("gflow_test_seeds::may_fail", mutates_args=())
    def may_fail(x: Tensor) -> Tensor:
        if fails:
            raise RuntimeError("on purpose")
        return x.clone()

    @may_fail.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    graph = flow.nn.Graph.trace(lambda x: may_fail(F.dropout(x, 0.5)))
    x = torch.ones(64)
    graph(x)
    state, saved = torch.get_rng_state(), graph.state_dict()["graph.rng"]
    fails.append(1)
    with pytest.raises(RuntimeError, match="on purpose"):
        graph(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(graph.state_dict()["graph.rng"], saved)


@pytest.mark.parametrize("late", [False, True])
def test_seeds_in_build_are_refused(late: bool) -> None:
    class Seeds(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            if late:
                x = F.dropout(x, 0.5)
                torch.manual_seed(0)
                return x
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return F.dropout(x, 0.5)

    with pytest.raises(flow.GraphError, match=r"test_seeds.py.*Seed before the call"):
        Seeds()(torch.ones(4))
    with pytest.raises(flow.GraphError, match="default generator"):
        flow.nn.Graph.trace(lambda x: torch.rand(3, generator=torch.Generator()))(torch.ones(4))


def test_another_thread_may_seed_while_a_graph_is_traced() -> None:
    """What that thread does is its own, and PyTorch's functions are as they were after the trace."""
    seeds = [7, 8]
    originals = torch.manual_seed, torch.random.set_rng_state

    class Seeded(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            if seeds:
                x = F.dropout(x, 0.5)
                other = threading.Thread(target=lambda: torch.manual_seed(seeds.pop()))
                other.start()
                other.join()
            return F.dropout(x, 0.5)

    out = Seeded()(torch.ones(64))
    assert set(out.unique().tolist()) <= {0.0, 2.0, 4.0}
    assert torch.initial_seed() == 8
    assert (torch.manual_seed, torch.random.set_rng_state) == originals

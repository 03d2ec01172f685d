"""Embeddings with sparse gradients, and optimizers that update only the rows that were looked up."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_training import TrainGraph, assert_close, assert_same
from torch import nn, optim

import gflow


class Words(nn.Module):
    def __init__(self, sparse: bool = True, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4, sparse=sparse, padding_idx=padding)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids)).tanh()


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    loss = model(ids).square().mean()
    loss.backward()
    return loss


def train(model: nn.Module, optimizers: Any, step: Any = loss_of, scaler: Any = None) -> Any:
    """The same steps eagerly and in a graph."""
    other = copy.deepcopy(model)
    references = optimizers(other)
    graph = TrainGraph(model, *optimizers(model), step=step, scaler=scaler)
    for _ in range(5):
        ids = torch.randint(0, 20, (3, 2))
        loss = graph(ids)
        for o in references:
            o.zero_grad()
        assert_close(loss, step(other, ids))
        for o in references:
            o.step()
        assert_same(model, other)
    return graph


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("maximize", [False, True])
def test_sparse_adam(padding: int | None, maximize: bool) -> None:
    """Rows that are not looked up keep their moments: dense Adam would go on moving them."""

    def make(m: Any) -> list[optim.Optimizer]:
        sparse = optim.SparseAdam([m.table.weight], lr=0.1, maximize=maximize)
        return [sparse, optim.SGD(m.head.parameters(), lr=0.1)]

    graph = train(Words(padding=padding), make)
    assert sum(len(p) for p in graph._state.plans.values()) == 1


def test_sparse_adam_with_a_scaler_and_two_lookups() -> None:
    def step(model: Any, ids: torch.Tensor) -> torch.Tensor:
        loss = (model(ids).mean() + model(ids[:, :1] // 2).mean()).square()
        loss.backward()
        return loss

    def make(m: Any) -> list[optim.Optimizer]:
        return [optim.SparseAdam([m.table.weight], lr=0.1)]

    train(Words(), make, step=step, scaler=gflow.amp.GradScaler())


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_optimizers_that_take_both(name: str) -> None:
    train(Words(), lambda m: [getattr(optim, name)(m.parameters(), lr=0.1)])


def test_is_sparse() -> None:
    """Decay and momentum go only to rows that were looked up."""
    model = Words(sparse=False)
    before = model.table.weight.detach().clone()
    optimizer = optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)

    class Sparse(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, is_sparse=True)

        def build(self, ids: torch.Tensor) -> torch.Tensor:
            return loss_of(self.model, ids)

    graph = Sparse()
    graph(torch.tensor([1, 2, 2, 7]))
    moments = optimizer.state[model.table.weight]["exp_avg"].clone()
    after = model.table.weight.detach().clone()
    changed = (after != before).any(1).nonzero().flatten().tolist()
    assert changed == [1, 2, 7]
    graph(torch.tensor([2, 3, 3, 3]))
    changed = (model.table.weight != after).any(1).nonzero().flatten().tolist()
    assert changed == [2, 3]
    now = optimizer.state[model.table.weight]["exp_avg"]
    assert (now != moments).any(1).nonzero().flatten().tolist() == [2, 3]


def test_dense_gradients_of_sparse_adam() -> None:
    def tied(model: Any, ids: torch.Tensor) -> torch.Tensor:
        loss = (model.table(ids) @ model.table.weight.T).square().mean()
        loss.backward()
        return loss

    model = Words()
    graph = TrainGraph(model, optim.SparseAdam([model.table.weight], lr=0.1), step=tied)
    with pytest.raises(gflow.GraphTraceError, match=r"model\.table\.weight is dense: .*Use Adam"):
        graph(torch.tensor([1, 2]))


def test_no_micro_batches() -> None:
    model = Words()
    graph = TrainGraph(model, optim.SparseAdam([model.table.weight], lr=0.1), step=loss_of)
    graph.config.set_gradient_accumulation_steps(2)
    with pytest.raises(gflow.GraphTraceError, match="differ between micro-batches"):
        graph(torch.tensor([1, 2]))


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_bags(kind: str) -> None:
    bag = nn.EmbeddingBag(10, 3, mode=kind, padding_idx=0)
    optimizer = optim.SGD(bag.parameters(), lr=0.1, momentum=0.9)

    class Bags(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.bag = bag
            self.add_optimizer(optimizer, is_sparse=True)

        def build(self, ids: torch.Tensor) -> torch.Tensor:
            loss = self.bag(ids).square().sum()
            loss.backward()
            return loss

    graph = Bags()
    for rows in ([1, 2, 2, 0], [2, 7, 0, 0]):
        before = bag.weight.detach().clone()
        graph(torch.tensor(rows).view(2, 2))
        changed = (bag.weight != before).any(1).nonzero().flatten().tolist()
        assert changed == sorted({*rows} - {0})


def test_is_sparse_where_nothing_is_looked_up() -> None:
    """It would have no effect, so it is an error."""
    linear = nn.Linear(4, 3)

    class Dense(gflow.nn.Graph):
        def __init__(self, is_sparse: Any) -> None:
            super().__init__()
            self.linear, self.table = linear, nn.Embedding(5, 4)
            self.add_optimizer(optim.SGD(linear.parameters(), lr=0.1), is_sparse=is_sparse)

        def build(self, ids: torch.Tensor) -> torch.Tensor:
            loss = self.linear(self.table(ids)).square().sum()
            loss.backward()
            return loss

    with pytest.raises(gflow.GraphTraceError, match=r"\(linear\.weight and 1 more\) is looked up"):
        Dense(True)(torch.tensor([1]))
    with pytest.raises(gflow.GraphError, match=r"test_sparse.py:\d+: .*is_sparse is True or False"):
        Dense("yes")

"""Steps in micro-batches against eager steps on whole batches, and gradients read after a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_training import (
    CLIP,
    FirstGradient,
    TrainGraph,
    assert_close,
    assert_same,
    batch,
    clip_eagerly,
    make_model,
    mse,
    programs,
    sgd,
)
from torch import nn, optim
from torch.nn import functional as F

import gflow


def accumulating(graph: Any, steps: int) -> Any:
    graph.config.set_gradient_accumulation_steps(steps)
    return graph


@pytest.mark.parametrize("make", [sgd, FirstGradient, lambda m: optim.AdamW(m.parameters(), 0.01)])
@pytest.mark.parametrize("count", [2, 3])
def test_equals_the_whole_batch(make: Callable[[nn.Module], Any], count: int) -> None:
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = make(model), make(other)
    graph = accumulating(TrainGraph(model, optimizer), count)
    graph.config.keep_gradients()
    for _ in range(4):
        x, y = batch(12)
        loss = graph(x, y)
        reference.zero_grad()
        assert_close(loss, mse(other, x, y))
        reference.step()
        for name, p in other.named_parameters():
            assert_close(graph.grad(f"model.{name}"), p.grad)
    assert_same(model, other)
    assert programs(graph) == 1


def test_what_build_returns_is_joined() -> None:
    def step(model: nn.Module, batch: Any, factor: torch.Tensor, flag: Any) -> Any:
        out = model(batch["x"])
        loss = F.mse_loss(out, batch["y"]) * factor
        loss.backward()
        right = (out.argmax(1) == batch["y"].argmax(1)).sum()
        return {"loss": loss, "out": [out, (out.detach() > 0)], "right": right, "flag": flag}

    model = make_model()
    other = copy.deepcopy(model)
    graph = accumulating(TrainGraph(model, sgd(model), step=step), 4)
    x, y = batch(16)
    args = ({"x": x, "y": y}, torch.tensor(2.0), None)
    torch.testing.assert_close(graph(*args), step(other, *args), rtol=1e-4, atol=1e-6)


def test_clipping_and_scaling_see_the_whole_batch() -> None:
    for scaler in (None, gflow.amp.GradScaler(), gflow.amp.StaticGradScaler(64.0)):
        model = make_model()
        other = copy.deepcopy(model)
        optimizer, reference = sgd(model), sgd(other)
        for o in (optimizer, reference):
            o.param_groups[0].update(CLIP)
        graph = accumulating(TrainGraph(model, optimizer, scaler=scaler), 2)
        graph.config.keep_gradients("model.0.weight")
        for _ in range(3):
            x, y = batch(6)
            graph(x, y)
            reference.zero_grad()
            mse(other, x, y)
            clip_eagerly(other, reference)
            reference.step()
            assert_close(graph.grad(model[0].weight), other[0].weight.grad)
        assert_same(model, other)


def test_batch_norm_and_dropout_by_micro_batch() -> None:
    """Statistics are updated in order, and each micro-batch has its own mask."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(x))

    model = Model()
    other = copy.deepcopy(model)
    optimizer, reference = sgd(model), sgd(other)
    graph = accumulating(TrainGraph(model, optimizer), 2)
    for _ in range(3):
        x, y = batch(8)
        graph(x, y)
        reference.zero_grad()
        for part in (slice(0, 4), slice(4, 8)):
            (F.mse_loss(other(x[part]), y[part]) / 2).backward()
        reference.step()
    assert_same(model, other)

    def dropped(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        kept = F.dropout(torch.ones_like(x), 0.5)
        mse(model, x * kept, y)
        return kept

    masks = accumulating(TrainGraph(model, optimizer, step=dropped), 2)
    x, y = batch(64)
    first, again = masks(x, y), masks(x, y)
    seen = [*first.split(32), *again.split(32)]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_memory_is_that_of_one_micro_batch() -> None:
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())])
    x, y = torch.randn(256, 64), torch.randn(256, 64)
    sizes = []
    for count in (1, 8):
        graph = accumulating(TrainGraph(model, sgd(model)), count)
        graph(x, y)
        plans = [p for variants in graph._state.plans.values() for p in variants]
        run = plans[0].compiled.run
        parts = [run] if count == 1 else [run.forward.run, run.update.run]
        sizes.append(max(part.program.arena_bytes for part in parts))
    assert sizes[1] < sizes[0] / 4


def test_batches_of_other_sizes() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = sgd(model), sgd(other)
    graph = accumulating(TrainGraph(model, optimizer), 3)
    for rows in (12, 6, 12):
        x, y = batch(rows)
        graph(x, y)
        reference.zero_grad()
        mse(other, x, y)
        reference.step()
    assert_same(model, other)
    with pytest.raises(gflow.GraphInputError, match=r"input 'x' of shape \[10, 6\].* 3 micro"):
        accumulating(Named(model, optimizer), 3)(*batch(10))


class Named(TrainGraph):
    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse(self.model, x, y)


def test_no_micro_batches_without_optimizer() -> None:
    class Evaluation(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

    graph = accumulating(Evaluation(), 4)
    x, _ = batch(7)
    assert_close(graph(x), graph.model(x))


def test_gradients_are_not_read_in_a_micro_batch() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    model = make_model()
    graph = accumulating(TrainGraph(model, sgd(model), step=step), 2)
    with pytest.raises(gflow.GraphTraceError, match="the key clip_grad_max_norm"):
        graph(*batch())


def test_single_bools_cannot_be_joined() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return mse(model, x, y) > 0

    model = make_model()
    graph = accumulating(TrainGraph(model, sgd(model), step=step), 2)
    with pytest.raises(gflow.GraphTraceError, match="returns a single bool"):
        graph(*batch())


# gradients after a step


@pytest.mark.parametrize("make", [sgd, FirstGradient])
def test_gradients_after_a_step(make: Callable[[nn.Module], Any]) -> None:
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = make(model), make(other)
    graph = TrainGraph(model, optimizer, scaler=gflow.amp.GradScaler())
    graph.config.keep_gradients("model.0.weight", model[3].bias)
    for _ in range(3):
        x, y = batch()
        graph(x, y)
        reference.zero_grad()
        mse(other, x, y)
        reference.step()
        assert_close(graph.grad("model.0.weight"), other[0].weight.grad)
        assert_close(graph.grad("model.3.bias"), other[3].bias.grad)
        assert_close(graph.grad(model[0].weight), other[0].weight.grad)
    assert_same(model, other)
    kept = graph.grad("model.0.weight")
    before = kept.clone()
    graph(*batch())
    assert torch.equal(kept, before)


def test_gradients_that_are_not_kept() -> None:
    model = make_model()
    graph = TrainGraph(model, sgd(model))
    graph.other = nn.Linear(2, 2)
    graph(*batch())
    with pytest.raises(gflow.GraphError, match=r"keep_gradients\('model.0.weight'\) before"):
        graph.grad("model.0.weight")
    with pytest.raises(gflow.GraphError, match=r"did you mean 'model.0.weight'"):
        graph.grad("model.0.wait")
    with pytest.raises(gflow.GraphError, match="no optimizer of the graph trains it"):
        graph.grad("other.weight")
    graph.config.keep_gradients()
    with pytest.raises(gflow.GraphError, match="before the graph's first step"):
        graph.grad("model.0.weight")
    graph(*batch())
    assert graph.grad("model.0.weight").shape == (8, 6)
    model[0].weight.requires_grad_(False)
    graph(*batch())
    assert graph.grad("model.0.weight") is None


def test_inspection() -> None:
    """The listing has whole batches; the rest is about what each micro-batch runs."""
    model = make_model()
    graph = accumulating(Named(model, sgd(model)), 2)
    x, y = batch(8)
    graph(x, y)
    assert "size=(8, 6)" in repr(graph)
    for stage in ("traced", "planned"):
        assert "tensor<4x6xf32>" in graph.ir(stage, generic=True)
    assert graph.kernels()
    assert graph.memory().arena
    assert graph.explain().fused
    assert graph.profile(x, y, rounds=2)

"""Results whose shape depends on values: ops that run after the program, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow
from gflow import nn
from gflow.errors import GraphError, GraphTraceError
from gflow.tracing.program.interpreter import TailSteps

F = torch.nn.functional


def _graph(build: Callable[..., Any]) -> nn.Graph:
    return nn.Graph.trace(build)


def _selected(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def _in_place(x: Tensor) -> Any:
    y = _selected(x)
    y[:, 0].mul_(2)
    y += 1
    return y, y[:, 1], x.sum()


def _nested(x: Tensor) -> Any:
    y = _selected(x)
    z = y[y[:, 1] > 0]
    return {"of": z, "where": torch.where(z > 0), "count": torch.tensor(2.0) * z.shape[0]}


def _suppressed(x: Tensor) -> Any:
    boxes, scores = x[:, :2], x[:, 2].sigmoid()
    kept = torch.nonzero(scores > 0.5).squeeze(1)
    order = scores[kept].argsort(descending=True)
    chosen = boxes[kept][order]
    apart = torch.cdist(boxes, boxes).mean()
    return chosen, torch.maximum(chosen[:, None], chosen[None]).sum(-1), apart, scores


CASES: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "masked_select": lambda x: (x.masked_select(x > 0) * 2, x.mean()),
    "unique": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.round().flatten()),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0),
    "bincount": lambda x: torch.bincount(x.abs().long().flatten()),
    "reductions": lambda x: (_selected(x).sum(), _selected(x).norm(dim=1), _selected(x).std(0)),
    "sizes": lambda x: (torch.arange(_selected(x).shape[0]), _selected(x).sum() / (x.shape[0] + 1)),
    "formulas": lambda x: torch.cat([_selected(x)[1:], x]).reshape(-1, 2),
    "sizes alone": lambda x: torch.zeros((x > 0).nonzero().shape[0] + x.shape[0]),
    "views of an intermediate": lambda x: (x * 2)[:, 1:][x[:, 0] > 0] + (x * 2)[1].sum(),
    "views": lambda x: (_selected(x).t(), _selected(x).flatten()[: _selected(x).shape[0] // 2]),
    "broadcast": lambda x: x.sum(0).expand(_selected(x).shape[0], -1),
    "in place": _in_place,
    "nested": _nested,
    "detector": _suppressed,
}


@pytest.mark.parametrize("name", CASES)
def test_beside_eager(name: str) -> None:
    """Several sizes, of which the second makes the dimension dynamic; none and all of the rows are selected."""
    graph = _graph(CASES[name])
    for n, shift in ((6, 0.0), (6, 0.3), (9, 0.0), (8, 9.0), (8, -9.0), (9, 0.0)):
        x = torch.randn(n, 4) + shift
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(graph(mine), CASES[name](theirs), equal_nan=True)
        torch.testing.assert_close(mine, theirs)
    assert len(graph.explain_recompiles()) <= 2


def test_results_share_memory_as_in_eager() -> None:
    """Views of a late result, and late views of an argument and of another result."""

    def build(x: Tensor) -> Any:
        y, h = _selected(x), x * 2
        rows = y.shape[0]
        return y, y[:, 0], h[0], h[0].expand(rows, -1), x[0].expand(rows, -1), h

    x = torch.randn(5, 4)
    x[0] = 1.0
    y, column, _, wide, own, h = _graph(build)(x)
    y.zero_()
    assert not column.any()
    h.fill_(7)
    x[0] = 3.0
    assert bool((wide == 7).all())
    assert bool((own == 3).all())


class _Train(nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, t: Tensor) -> Any:
        y = self.model(x)
        loss = F.mse_loss(y, t)
        loss.backward()
        weight = self.model.weight
        return loss, x[y[:, 0].sigmoid() > 0.5], weight[:, (weight[0] > 0).nonzero().squeeze(1)]


class _Averaged(torch.optim.Optimizer):
    """Its state begins with a gradient, so a graph makes the first step op by op."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if "mean" not in self.state[p]:
                    self.state[p]["mean"] = p.grad.clone()
                mean = self.state[p]["mean"].lerp_(p.grad, 0.1)
                p.add_(mean, alpha=-group["lr"])


def _eager_step(
    model: torch.nn.Linear, optimizer: torch.optim.Optimizer, x: Tensor, t: Tensor
) -> Any:
    optimizer.zero_grad()
    y = model(x)
    loss = F.mse_loss(y, t)
    loss.backward()
    weight = model.weight.detach().clone()
    optimizer.step()
    return loss.detach(), x[y[:, 0].sigmoid() > 0.5], weight[:, (weight[0] > 0).nonzero()[:, 0]]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, _Averaged])
def test_training(kind: Any) -> None:
    """The late results have the values before the update; an optimizer may need a first step op by op."""
    torch.manual_seed(0)
    mine = torch.nn.Linear(4, 3, bias=False)
    theirs = copy.deepcopy(mine)
    ours, other = kind(mine.parameters(), lr=0.1), kind(theirs.parameters(), lr=0.1)
    graph = _Train(mine, ours)
    for n in (6, 6, 9, 8):
        x, t = torch.randn(n, 4), torch.randn(n, 3)
        torch.testing.assert_close(graph(x, t), _eager_step(theirs, other, x, t))
        torch.testing.assert_close(mine.weight, theirs.weight)


def test_checked_against_eager_and_explained() -> None:
    model = torch.nn.Linear(4, 3)
    graph = _Train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    graph.config.check_against_eager(every=1)
    for _ in range(3):
        graph(torch.randn(6, 4), torch.randn(6, 3))
    late = [f for f in graph.explain().aten if "shape depends on values" in f.why]
    assert {"aten.index.Tensor", "aten.nonzero.default"} <= {f.overload for f in late}
    assert all(s.file == __file__ for f in late for s in f.sources)


def test_differences_in_the_tail_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [True]
    graph = _graph(lambda x: _selected(x) * (2 if wanted[0] else 3))
    graph.config.check_against_eager(every=1)
    x = torch.ones(3, 2)
    graph(x)
    plan = graph._state.latest
    assert plan is not None
    assert plan.trace.tail is not None
    op = next(op for op in plan.trace.tail.ops if "mul" in str(op.func))
    monkeypatch.setattr(op, "args", (op.args[0], 3))
    monkeypatch.setattr(plan, "tail", TailSteps(plan.trace.tail))
    with pytest.raises(gflow.errors.EagerMismatch, match="result 0"):
        graph(x)


def test_dead_selections_are_dropped() -> None:
    def build(x: Tensor) -> Tensor:
        (x > 0).nonzero().sum()
        return x + 1

    graph = _graph(build)
    torch.testing.assert_close(graph(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert graph._state.latest is not None
    assert graph._state.latest.trace.tail is None


def _feeds_backward(x: Tensor, model: torch.nn.Linear) -> Any:
    loss = model(x)[x[:, 0] > 0].mean()
    loss.backward()
    return loss


def _feeds_state(x: Tensor, model: torch.nn.Linear) -> Any:
    model.bias.data.add_(_selected(x).sum())
    return model(x)


def _branches(x: Tensor, model: torch.nn.Linear) -> Any:
    y = _selected(x)
    return y if y.shape[0] > 2 else model(y)


def _draws(x: Tensor, model: torch.nn.Linear) -> Any:
    return torch.rand_like(_selected(x))


def _counts(x: Tensor, model: torch.nn.Linear) -> Any:
    return x, _selected(x).shape[0]


def _takes_a_gradient(x: Tensor, model: torch.nn.Linear) -> Any:
    chosen = model.bias.masked_select(x > 0)
    return torch.autograd.grad(chosen, model.bias, torch.ones(9))


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (_takes_a_gradient, "a gradient for a result whose shape depends on values"),
        (_feeds_backward, "the gradient of model.weight is computed from it"),
        (_feeds_state, "parameter 'model.bias' is computed from it"),
        (_branches, r"asks for u0 > 2, .*aten.index.Tensor, .*test_tail.py.*through gflow.compile"),
        (_draws, "draws random numbers"),
        (_counts, "a size that depends on values: u0. Return tensors"),
    ],
)
def test_refused(build: Callable[..., Any], found: str) -> None:
    """With the line, and a way out."""

    model = torch.nn.Linear(4, 4)

    class Refused(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if build is _feeds_backward:
                self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x: Tensor) -> Any:
            return build(x, self.model)

    graph = Refused()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(GraphTraceError, match=found) as error:
        graph(torch.randn(5, 4))
    if build is not _counts:
        assert "test_tail.py" in str(error.value)
    torch.testing.assert_close(model.state_dict(), before)


def test_sizes_that_the_trace_did_not_expect_are_errors() -> None:
    """A row that is broadcast where several were expected to fit, and a dimension that is squeezed."""

    def added(x: Tensor) -> Any:
        y = _selected(x)
        return y + torch.ones(3, 1), torch.arange(y.shape[0])

    graph = _graph(added)
    x = torch.ones(4, 2)
    x[0] = -1
    torch.testing.assert_close(graph(x), added(x))
    x[1:3] = -1
    with pytest.raises(GraphError, match=r"test_tail.py:.* traced for Eq\(u0, 3\) .* has u0 = 1"):
        graph(x)

    squeezed = _graph(lambda x: _selected(x).squeeze(0).sum(-1))
    torch.testing.assert_close(squeezed(torch.ones(3, 2)), torch.full((3,), 2.0))
    with pytest.raises(GraphError, match=r"test_tail.py:.* has the shape \[2\], .* for \[1, 2\]"):
        squeezed(x)


def test_no_file(tmp_path: Path) -> None:
    graph = _graph(lambda x: (_selected(x), x.sum()))
    graph(torch.randn(4, 2))
    with pytest.raises(
        GraphError, match=r"cannot be saved: .*test_tail.py:\d+: the shape of the result of aten"
    ):
        gflow.save(graph, tmp_path / "graph")


def test_python_state_is_as_after_one_trace() -> None:
    """The trace begins anew where the first such op comes."""

    class Counted(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def build(self, x: Tensor) -> Tensor:
            self.calls += 1
            return _selected(x)

    graph = Counted()
    with pytest.warns(UserWarning, match="calls"):
        graph(torch.randn(4, 2))
    assert graph.calls == 1


def test_an_error_of_the_tail_names_the_line() -> None:
    graph = _graph(lambda x, i: x[i[i > 0]])
    x, i = torch.randn(4, 2), torch.tensor([1, 2])
    torch.testing.assert_close(graph(x, i), x[i])
    with pytest.raises(IndexError) as error:
        graph(x, torch.tensor([1, 9]))
    assert any(
        "test_tail.py" in note for note in getattr(error.value, "__notes__", [str(error.value)])
    )


def test_compiled_functions_are_split_as_before() -> None:
    compiled = gflow.compile(lambda x: _selected(x) * 2)
    x = torch.randn(6, 3, requires_grad=True)
    y = compiled(x)
    torch.testing.assert_close(y, _selected(x) * 2)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.shape == x.shape


def test_packed_sequences_name_the_way_out() -> None:
    """PyTorch's LSTM takes a size out of a tensor, which a tail does not have either."""
    layer = torch.nn.LSTM(3, 4)

    class Packed(gflow.nn.Graph):
        def build(self, x: Tensor, lengths: Tensor) -> Any:
            return layer(torch.nn.utils.rnn.pack_padded_sequence(x, lengths))[1]

    with pytest.raises(GraphTraceError, match=r"test_tail.py:\d+.*_pack_padded.*torch\.compile"):
        Packed()(torch.randn(5, 2, 3), torch.tensor([5, 2]))

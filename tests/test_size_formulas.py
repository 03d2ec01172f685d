"""Sizes that follow from one that varies: floor quotients and remainders, strides, recurrences, micro-batches."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gflow

SIZES = (8, 9, 5, 13, 24, 7, 10, 2, 3, 97, 500, 1, 0)


def some(names: Iterable[str], *often: str) -> list[Any]:
    """Cases by name, those that are not run often in the sweep alone."""
    return [n if n in often else pytest.param(n, marks=pytest.mark.sweep) for n in names]


def sizes_of(graph: Any) -> list[str]:
    return [made.sizes for made in graph.explain_recompiles()]


def check(
    function: Callable[..., Any], make: Callable[[int], Tensor], sizes: tuple[int, ...], dim: int = 0, most: int = 0
) -> list[str]:  # fmt: skip
    """Calls beside eager, the first with a marked dimension if there is a `most`; what the programs are for."""
    graph = gflow.nn.Graph.trace(lambda x: function(x))
    with torch.no_grad():
        for n in sizes:
            x = make(n)
            if most and n == sizes[0]:
                gflow.dynamic_dim(x, dim, max=most)
            for a, b in zip(tree_leaves(graph(x)), tree_leaves(function(x)), strict=True):
                torch.testing.assert_close(
                    a, b, rtol=1e-4, atol=1e-4, msg=lambda m, n=n: f"{n}: {m}"
                )
    return sizes_of(graph)


#: name: function of an [n, 3] tensor, and into how many parts sizes from 2 on fall
_FORMULAS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "halves": (lambda x: (x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2 :] * 2), 2),
    "remainders": (lambda x: x.sum() * (x.shape[0] % 3) + x.shape[0] // 3, 3),
    "padded": (lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 4)).cumsum(0), 4),
    "a choice": (lambda x: x + 1 if x.shape[0] % 2 else x[: x.shape[0] // 2] * 2, 2),
    "every other": (lambda x: x[::2] * 2, 2),
    "chunks": (lambda x: x.chunk(2), 2),
    "at most": (lambda x: x[:5] + 1, 2),
}


@pytest.mark.parametrize("name", some(_FORMULAS, "remainders", "a choice"))
def test_parts_of_a_range_have_programs(name: str) -> None:
    function, parts = _FORMULAS[name]
    make = lambda n: torch.randn(n, 3)  # noqa: E731
    found = check(function, make, SIZES)
    assert len(set(found) - {""}) == parts
    assert found.count("") <= 5  # the first, 0, 1, and what is smaller than the divisor


@pytest.mark.parametrize("name", some(("halves", "a choice", "at most"), "halves"))
def test_parts_of_a_marked_range(name: str) -> None:
    function, parts = _FORMULAS[name]
    found = check(function, lambda n: torch.randn(n, 3), (8, 9, 5, 13, 24, 2, 1, 63, 64), most=64)
    assert len(set(found) - {""}) == parts
    assert found.count("") <= 1


_POOLS: dict[str, Callable[[Tensor], Any]] = {
    "convolution": nn.Conv1d(4, 6, 3, stride=2, padding=1),
    "averages": lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True),
    "greatest": lambda x: F.max_pool1d(x, 3, 2, 1),
    "windows": lambda x: x.unfold(2, 4, 2) * 1,
}


@pytest.mark.parametrize("name", some(_POOLS, "convolution", "greatest"))
def test_strides_over_a_length(name: str) -> None:
    found = check(_POOLS[name], lambda n: torch.randn(2, 4, n), (8, 9, 7, 13, 24, 31, 97, 300))
    assert len(found) <= 4
    assert len(set(found)) == 3


@pytest.mark.sweep
def test_a_stack_of_strides_trains_over_lengths() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 3, 3, padding=1)
    )  # fmt: skip
    eager = copy.deepcopy(model)
    fast = gflow.compile(model)
    for n in (12, 16, 9, 33, 18, 40, 97, 35, 26, 100):
        x = torch.randn(2, 4, n)
        for run, own in ((fast, model), (eager, eager)):
            own.zero_grad()
            run(x).square().sum().backward()
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
    assert len(sizes_of(fast)) <= 5  # the first, and one for each remainder by four


_RECURRENT: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, two layers, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm with projections": (nn.LSTM, {"proj_size": 3}),
    "gru, both ways": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "gru without biases": (nn.GRU, {"bias": False, "num_layers": 2}),
    "rnn": (nn.RNN, {"nonlinearity": "relu"}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", some(_RECURRENT, "lstm", "gru, both ways"))
def test_recurrences_over_a_length(name: str) -> None:
    kind, words = _RECURRENT[name]
    torch.manual_seed(0)
    model = kind(4, 5, **words)
    eager, fast = copy.deepcopy(model), gflow.compile(model)
    for n in (8, 9, 2, 97):
        x = torch.randn(*((2, n, 4) if model.batch_first else (n, 2, 4)))
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        for given, run, own in ((mine, fast, model), (theirs, eager, eager)):
            own.zero_grad()
            results = tree_leaves(run(given))
            sum(t.square().sum() for t in results).backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
    assert len(sizes_of(fast)) == 2


@pytest.mark.sweep
def test_dropout_between_layers_of_a_recurrence() -> None:
    model = nn.GRU(4, 64, num_layers=2, dropout=0.5)
    fast = gflow.compile(model)
    for n in (5, 7, 11):
        x = torch.randn(n, 2, 4)
        assert not torch.equal(fast(x)[0], fast(x)[0])
    model.eval()
    for n in (5, 7, 11):
        x = torch.randn(n, 2, 4)
        torch.testing.assert_close(fast(x)[0], model(x)[0])


class Step(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(3)

    def build(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(x)
        loss = (out - y).square().mean()
        loss.backward()
        return loss, out


@pytest.mark.parametrize("marked", [False, True])
def test_micro_batches_of_many_sizes(marked: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, eager)]
    graph = Step(model, optimizers[0])
    for k, n in enumerate((12, 6, 30, 3, 9, 33, 60, 12)):
        x, y = torch.randn(n, 4), torch.randn(n, 1)
        if marked and not k:
            x, y = gflow.dynamic_dim(x, max=90), gflow.dynamic_dim(y, max=90)
        loss, out = graph(x, y)
        optimizers[1].zero_grad()
        want = eager(x)
        whole = (want - y).square().mean()
        whole.backward()
        torch.testing.assert_close(loss, whole.detach())
        torch.testing.assert_close(out, want.detach(), rtol=1e-4, atol=1e-5)
        optimizers[1].step()
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert sizes_of(graph)[-1].endswith("90]" if marked else "1023]")
    assert len(sizes_of(graph)) == 2 - marked
    with pytest.raises(gflow.GraphInputError, match="no multiple of 3"):
        graph(torch.randn(4, 4), torch.randn(4, 1))
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    for n in (12, 15, 66):
        x, y = torch.randn(n, 4), torch.randn(n, 1)
        for a, b in zip(loaded(x, y), graph(x, y), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.sweep
def test_lengths_vary_in_micro_batches() -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(2, 3, 3, stride=2)
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager)]
    graph = Step(model, optimizers[0])
    graph.build = lambda x: graph.model(x).square().mean().backward()  # type: ignore[method-assign]
    for n in (8, 10, 20, 6):
        x = torch.randn(6, 2, n)
        graph(x)
        optimizers[1].zero_grad()
        eager(x).square().mean().backward()
        optimizers[1].step()
        torch.testing.assert_close(model.weight, eager.weight, rtol=1e-4, atol=1e-5)
    assert len(sizes_of(graph)) == 2


def test_saved_parts_and_recurrences(tmp_path: Path) -> None:
    graph = gflow.nn.Graph.trace(lambda x: x[: x.shape[0] // 2] + 1)
    for n in (9, 7, 4):
        graph(torch.randn(n, 2))
    gflow.save(graph, tmp_path / "parts")
    loaded = gflow.load(tmp_path / "parts")
    for n in (9, 7, 5, 8, 4, 30, 1001):
        x = torch.randn(n, 2)
        torch.testing.assert_close(loaded(x), x[: n // 2] + 1)
    with pytest.raises(ValueError, match=r"\[2\*k, 2\] expected, k in \[1, 512\]"):
        loaded(torch.randn(1027, 2))

    model = nn.LSTM(3, 4)
    graph = gflow.nn.Graph.trace(lambda x: model(x)[0])
    with torch.no_grad():
        for n in (9, 7):
            graph(torch.ones(n, 2, 3))
        gflow.save(graph, tmp_path / "lstm")
        want = model(torch.ones(17, 2, 3))[0]
    places = [str(tmp_path / name) for name in ("lstm", "out")]
    code = "import sys, torch, gflow; torch.save(gflow.load(sys.argv[1])(torch.ones(17, 2, 3)), sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, *places], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "out"), want)

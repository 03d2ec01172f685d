"""Programs that are made for values of integers and masks: counts, largest indices and lists of sizes, beside eager."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow
from gflow import nn
from gflow.errors import GraphTraceError

F = torch.nn.functional


def _set(x: Tensor, mask: Tensor, _: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = x[mask].cumsum(0)
    return x


def _pooled(x: Tensor, _: Tensor, index: Tensor) -> Tensor:
    size = int(index.max()) + 1 if index.numel() else 0
    weight = (x - x.new_full((size, 3), -9.0).index_reduce(0, index, x, "amax")[index]).exp()
    return weight / x.new_zeros(size, 3).index_add(0, index, weight)[index]


CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "mask": lambda x, mask, i: (x[mask] * 2, x[~mask, :2].sum(0)),
    "mask of comparisons": lambda x, mask, i: x[(i != 1) & mask].t(),
    "mask between": lambda x, mask, i: x.expand(2, 6, 3)[:, mask, 1],
    "mask of two dimensions": lambda x, mask, i: x[mask[:, None] & (i[:3] > 0)],
    "nonzero": lambda x, mask, i: (i.view(2, 3) > 0).nonzero(as_tuple=True),
    "masked_select": lambda x, mask, i: x.masked_select(mask[:, None]),
    "set": _set,
    "groups": _pooled,
    "unique": lambda x, mask, i: torch.unique(i.view(2, 3).t(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x, mask, i: torch.unique_consecutive(i, return_inverse=True, return_counts=True),
    "bincount of nothing": lambda x, mask, i: torch.bincount(i[:0], x[:0, 0], minlength=2),
    "text": lambda x, mask, i: x * len(f"{i[0]}{i.sum():3d}{i}"),
    "bincount": lambda x, mask, i: (torch.bincount(i, minlength=3), torch.bincount(i, x[:, 0])),
    "repeat_interleave": lambda x, mask, i: x.repeat_interleave(i, dim=0),
    "one_hot": lambda x, mask, i: F.one_hot(i),
    "bounds": lambda x, mask, i: (x.narrow(0, i.max() - 1, i[0] + 1), x.tensor_split(i[:2].clamp(max=1))),
    "list": lambda x, mask, i: x.sum(0) * torch.tensor(i.tolist()).sum(),
    "array": lambda x, mask, i: x[torch.from_numpy(i.numpy() % 3)],
    "choice": lambda x, mask, i: x * 2 if mask.any() else x + 1,
    "equality": lambda x, mask, i: x * 2 if torch.equal(mask, i > 1) else x + 1,
    "loop": lambda x, mask, i: torch.stack([x * k for k in range(int(mask.sum()) + 1)]),
    "constants": lambda x, mask, i: x[torch.tril(torch.ones(3, 3)).nonzero()[:, 0]] * x[mask].numel(),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_beside_eager(name: str) -> None:
    """Calls alternate between values; each is compared, none falls into another's program."""
    torch.manual_seed(0)
    graph = nn.Graph.trace(CASES[name])
    masks = [torch.tensor(m).bool() for m in ([1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0], [0] * 6)]
    index = [torch.tensor(i) for i in ([0, 2, 2, 1, 0, 3], [1, 1, 0, 1, 1, 1], [2, 2, 3, 3, 3, 0])]
    for k in (0, 0, 1, 0, 2, 1):
        given = torch.randn(6, 3), masks[k], index[k]
        torch.testing.assert_close(graph(*given), CASES[name](*given))
    assert len(graph.explain_recompiles()) <= 3
    assert graph._state.latest is not None
    assert graph._state.latest.trace.tail is None


class _Masked(torch.nn.Module):
    """Two layers of message passing without loops, of which a mask chooses the rows of the loss."""

    chosen: Tensor

    def __init__(self, chosen: Tensor) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.register_buffer("chosen", chosen)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            source, target = edges[:, edges[0] != edges[1]]
            x = layer(x) + torch.zeros_like(layer(x)).index_add(0, target, layer(x)[source])
            x = x.tanh()
        return x[self.chosen]


class _Train(nn.Graph):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.Adam(model.parameters(), lr=0.1))

    def build(self, x: Tensor, edges: Tensor) -> Tensor:
        loss = self.model(x, edges).square().mean()
        loss.backward()
        return loss


def test_training_over_graphs_and_masks() -> None:
    """The same edges, others with as many loops, others with more; and a buffer that is written between calls."""
    torch.manual_seed(0)
    mine = _Masked(torch.arange(5) < 3)
    theirs = copy.deepcopy(mine)
    graph, optimizer = _Train(mine), torch.optim.Adam(theirs.parameters(), lr=0.1)
    edges = [
        torch.tensor(e)
        for e in ([[0, 1, 2, 2], [1, 2, 2, 3]], [[0, 3, 1, 4], [1, 3, 2, 2]], [[4] * 4, [4, 4, 0, 1]])
    ]  # fmt: skip
    for k, chosen in ((0, 3), (1, 3), (2, 3), (0, 3), (0, 4), (1, 4), (0, 4)):
        for model in (mine, theirs):
            model.chosen.copy_(torch.arange(5) < chosen)
        x = torch.randn(5, 3)
        optimizer.zero_grad()
        loss = theirs(x, edges[k]).square().mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x, edges[k]), loss.detach())
        torch.testing.assert_close(dict(mine.named_parameters()), dict(theirs.named_parameters()))
    reasons = [c.reason for c in graph.explain_recompiles()]
    assert len(reasons) == 3
    assert f"the number of true elements of a mask ({__file__}" in reasons[1]
    assert "is 2, which was 3" in reasons[1]


def test_many_values_end_in_one_program_where_one_can_do() -> None:
    graph = nn.Graph.trace(lambda x, mask: x[mask] * 2)
    x = torch.randn(9, 2)
    for k in range(9):
        mask = torch.arange(9) < k
        torch.testing.assert_close(graph(x, mask), x[mask] * 2)
    assert len(graph.explain_recompiles()) == 5


def test_many_values_of_a_choice_are_told() -> None:
    graph = nn.Graph.trace(lambda x, n: x * n.item())
    x = torch.randn(2)
    for k in range(8):
        torch.testing.assert_close(graph(x, torch.tensor(k)), x * k)
    with pytest.warns(UserWarning, match="the value of a tensor .* is 8, which was 7") as told:
        graph(x, torch.tensor(8))
    assert len(told) == 1


@pytest.mark.parametrize("value", [-0.0, float("nan"), 2.5])
def test_numbers_out_of_constants(value: float) -> None:
    """A constant is set between calls: 0.0 differs from -0.0, which it equals, and NaN is no other value than NaN."""
    held = torch.zeros(2)

    def build(x: Tensor) -> Tensor:
        return x * math.copysign(1.0, held[0].item()) * len(str(held.tolist()))

    graph = nn.Graph.trace(build)
    for number in (0.0, value, value, 0.0):
        held.fill_(number)
        torch.testing.assert_close(graph(torch.ones(2)), build(torch.ones(2)))
    assert len(graph.explain_recompiles()) == 2


def test_numbers_beyond_int64() -> None:
    graph = nn.Graph.trace(lambda x, n: x * (n.item() % 7))
    given = torch.ones(2), torch.tensor(2**63 + 5, dtype=torch.uint64)
    torch.testing.assert_close(graph(*given), torch.full((2,), float((2**63 + 5) % 7)))


def test_the_text_of_values_that_are_not_known() -> None:
    """A graph tells of it, and a function is split there."""
    x = torch.tensor([1.5, 2.0])
    with pytest.warns(UserWarning, match="takes the text of a tensor, .* has no values") as told:
        nn.Graph.trace(lambda x: x * len(f"{x}"))(x)
    assert told[0].filename == __file__
    split = gflow.compile(lambda x: x * len(f"{x}"))
    torch.testing.assert_close(split(x), x * len(f"{x}"))


@pytest.mark.parametrize("what", ["number", "random", "micro-batches"])
def test_what_is_not_known_is_an_error(what: str) -> None:
    layer = torch.nn.Linear(2, 2)

    def build(x: Tensor, mask: Tensor) -> Tensor:
        seen = torch.rand(2) > 0.5 if what == "random" else mask
        factor = float(x[0, 0]) if what == "number" else 2 if seen.any() else 3
        loss = layer(x).mean() * factor
        loss.backward()
        return loss

    graph = nn.Graph.trace(build)
    graph.add_optimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    if what == "micro-batches":
        graph.config.set_gradient_accumulation_steps(2)
    with pytest.raises(GraphTraceError, match=r"test_known_values.*Python asks for the value"):
        graph(torch.randn(4, 2), torch.ones(4).bool())


def test_a_saved_program_checks_the_values(tmp_path: Path) -> None:
    graph = nn.Graph.trace(lambda x, mask: x[mask].sum(0))
    x, mask = torch.randn(4, 2), torch.tensor([True, False, True, False])
    graph(x, mask)
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    torch.testing.assert_close(loaded(x, ~mask), x[~mask].sum(0))
    with pytest.raises(RuntimeError, match="for 2 true elements in a mask"):
        loaded(x, torch.ones(4).bool())

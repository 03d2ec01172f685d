"""Attributes that get a tensor in a call of a graph, where none was before or one of another shape, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow as flow
from gflow import nn


class Holder(torch.nn.Module):
    shape: Any = None
    anchors: Any = torch.empty(0)

    def __init__(self, how: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.how = [how]
        self.layer = torch.nn.Linear(3, 3)
        self.state: Any = None
        self.other = torch.zeros(1)
        self.sum: Any = 0.0
        self.register_buffer("late", None)
        self.kept: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Any:
        return self.how[0](self, x)


def recurrent(m: Any, x: Tensor) -> Tensor:
    """A state that begins as None."""
    if m.state is None:
        m.state = torch.zeros(3)
    m.state = torch.tanh(m.layer(x).mean(0) + m.state.detach())
    return m.state * 2


def stashed(m: Any, x: Tensor) -> Tensor:
    """Read by nothing in the program; its result is the same tensor."""
    m.state = m.layer(x)
    return m.state


def kept_argument(m: Any, x: Tensor) -> Tensor:
    before = 0.0 if m.state is None or m.state.shape != x.shape else m.state
    m.state = x
    return m.layer(x) + before


def by_shape(m: Any, x: Tensor) -> Tensor:
    """A cache by shape: a class attribute that an attribute of the module hides, beside Python state."""
    if m.shape != x.shape:
        m.anchors = torch.arange(x.shape[0], dtype=x.dtype) * 2
        m.shape = x.shape
    return m.layer(x) + m.anchors[:, None]


def buffer(m: Any, x: Tensor) -> Tensor:
    if m.late is None or m.late.shape[0] < x.shape[0]:
        m.late = torch.ones(x.shape[0]).cumsum(0)
    return m.layer(x) * m.late[: x.shape[0], None]


def registered(m: Any, x: Tensor) -> Tensor:
    if not hasattr(m, "mask"):
        m.register_buffer("mask", torch.ones(3, 3).tril(), persistent=False)
    return m.layer(x) @ m.mask


def total(m: Any, x: Tensor) -> Tensor:
    """A number that becomes a tensor."""
    m.sum = m.sum + x.sum().detach()
    return m.layer(x)


def in_dict(m: Any, x: Tensor) -> Tensor:
    if "sum" not in m.kept:
        m.kept["sum"] = torch.zeros(3)
    m.kept["sum"] = m.kept["sum"] + x.sum(0)
    return m.layer(x) + m.kept["sum"]


def grows(m: Any, x: Tensor) -> Tensor:
    """Longer at each call."""
    m.other = torch.cat([m.other, x.sum()[None]])
    return m.layer(x) * m.other.mean()


def another_dtype(m: Any, x: Tensor) -> Tensor:
    m.other = m.other.double() + 1
    return m.layer(x) * m.other.float()


WAYS = [
    recurrent,
    stashed,
    kept_argument,
    by_shape,
    buffer,
    registered,
    total,
    in_dict,
    grows,
    another_dtype,
]
PLACES = ("state", "shape", "anchors", "other", "late", "mask", "sum")


class Infer(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Tensor) -> Any:
        return self.model(x)


class Train(nn.Graph):
    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor) -> Any:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def assert_same_state(mine: Any, theirs: Any) -> None:
    for name in PLACES:
        a, b = getattr(mine, name, "nothing"), getattr(theirs, name, "nothing")
        assert type(a) is type(b), name
        if isinstance(a, Tensor):
            assert not torch._is_functional_tensor(a)
            torch.testing.assert_close(a, b)
        else:
            assert a == b, name
    assert mine.kept.keys() == theirs.kept.keys()
    torch.testing.assert_close(mine.kept, theirs.kept)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", WAYS)
def test_inference_as_eager(how: Callable[[Any, Tensor], Any]) -> None:
    torch.manual_seed(0)
    mine = Holder(how)
    theirs = copy.deepcopy(mine)
    graph = Infer(mine)
    results = []
    with torch.no_grad():
        for rows in (3, 3, 4, 3, 4, 3):  # also back to earlier sizes
            x = torch.randn(rows, 3)
            results.append((graph(x), theirs(x).clone()))
            assert_same_state(mine, theirs)
    for got, want in results:  # a later call changes no earlier result
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (by_shape, torch.optim.SGD),
        (registered, torch.optim.SGD),
        (total, torch.optim.SGD),
        (grows, torch.optim.Adam),
        (recurrent, torch.optim.Rprop),  # its first step creates its state
    ],
)
def test_training_as_eager(
    how: Callable[[Any, Tensor], Any], kind: type[torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    mine = Holder(how)
    theirs = copy.deepcopy(mine)
    graph = Train(mine, kind(mine.parameters(), lr=0.01))  # type: ignore[call-arg]
    optimizer = kind(theirs.parameters(), lr=0.01)  # type: ignore[call-arg]
    for rows in (3, 4, 3, 3):
        x = torch.randn(rows, 3)
        loss = theirs(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name in ("state", "anchors", "other"):  # a graph's attributes have no history
            if isinstance(held := vars(theirs).get(name), Tensor):
                setattr(theirs, name, held.detach())
        torch.testing.assert_close(graph(x), loss.detach())
        assert_same_state(mine, theirs)


@pytest.mark.parametrize("form", ["gflow", "onnx"])
def test_saved_once_a_program_only_updates(form: str, tmp_path: Path) -> None:
    graph, x, path = Infer(Holder(stashed)), torch.randn(2, 3), tmp_path / "saved"
    words = {} if form == "gflow" else {"format": form}
    with torch.no_grad():
        graph(x)
        with pytest.raises(flow.GraphError, match="assigns new tensors to attributes \\(state\\)"):
            flow.save(graph, path, **words)
        want = graph(x)
        flow.save(graph, path, **words)
        if form == "gflow":
            torch.testing.assert_close(flow.load(path)(x), want)

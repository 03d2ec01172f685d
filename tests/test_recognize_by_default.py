"""Written-out attention of float32 runs by our own kernel without being asked for, with eager's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_recognize_attention import CAUSAL, SPELLINGS, Block, D, T, hiding, with_mask
from torch import Tensor

import gflow as flow
from gflow.compiler.driver import attention_races
from gflow.compiler.driver.races import Racing
from gflow.compiler.targets.processors import host_level

INF = float("inf")
pytestmark = pytest.mark.skipif(
    not host_level(), reason="this processor has no vectors that attention is made for"
)


class Step(flow.nn.Graph):
    """A step of training; the result and the gradients by queries, keys and values as they come in."""

    def __init__(self, attend: Callable[..., Tensor], recognize: bool | None = None) -> None:
        super().__init__()
        self.attend = attend
        if recognize is not None:
            self.config.enable_attention_recognition(recognize)

    def build(self, *args: Tensor) -> tuple[Tensor, ...]:
        y = self.attend(*args)
        return y, *torch.autograd.grad(y, args[:3], args[0].detach() * 0.5)


def eager(attend: Callable[..., Tensor], args: list[Tensor]) -> tuple[Tensor, ...]:
    y = attend(*args)
    return y.detach(), *torch.autograd.grad(y, args[:3], args[0].detach() * 0.5)


def tensors(keys: int = T) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 2, n, D, requires_grad=True) for n in (T, keys, keys)]


def check(attend: Callable[..., Tensor], args: list[Tensor]) -> str:
    """Results and gradients equal eager's. Returns the IR."""
    graph, wanted = Step(attend), eager(attend, args)
    for ours, theirs in zip(graph(*args), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    text = graph.ir("planned")
    assert "gflow.attention_grad " in text
    return text


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    """What is added to scores, -inf among it, stays an operand: NaN plus -inf is NaN."""
    text = check(SPELLINGS[name], tensors())
    assert 'kind = "attention"' in text
    assert ("causal = true" in text) == (name in CAUSAL - {"triu added", "triu added in blocks"})


def alibi(scores: Tensor) -> Tensor:
    distance = 0.25 * torch.arange(T)[None] - torch.arange(T)[:, None]
    hidden = torch.arange(T)[None] > torch.arange(T)[:, None]
    return (scores + distance).masked_fill(hidden, -INF)


MASKED: dict[str, Callable[..., Tensor]] = {
    "plain": SPELLINGS["plain"],
    "tril": SPELLINGS["tril"],
    "triu added": SPELLINGS["triu added"],
    "band": SPELLINGS["band"],
    "biased and causal": with_mask(alibi),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("number", [float("nan"), INF])
def test_numbers_that_are_not_finite(name: str, number: float) -> None:
    """In queries, keys and values, where masks hide them and where they do not."""
    for where, position in ((0, 3), (0, 70), (1, 10), (1, 75), (2, 0), (2, 60)):
        args = tensors()
        with torch.no_grad():
            args[where][1, 1, position, 2] = number
        check(MASKED[name], args)


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("number", [float("nan"), INF])
def test_rows_whose_scores_are_all_infinite(name: str, number: float) -> None:
    """By data, not by a mask: eager's weights are NaN there, and so are ours."""
    args = tensors()
    with torch.no_grad():
        args[1][1, 1, :, 2] = number
    check(MASKED[name], args)


def test_no_race_chooses_a_kernel_of_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernel gives 0 for few keys whose scores are NaN; an op that was written out is never raced."""
    race = attention_races.race_attentions

    def decided(function: Any, racing: Racing, *rest: Any) -> Any:
        return race(function, Racing(lambda *_: {"own": 2.0, "aten": 1.0}, racing.device), *rest)

    monkeypatch.setattr(attention_races, "race_attentions", decided)
    q, k, v = (torch.randn(2, 4, n, 64) for n in (1024, 8, 8))
    k[0, 0, :, 0] = float("nan")
    spelled = flow.compile(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)
    assert spelled(q, k, v)[0, 0].isnan().all()
    called = Called()
    called(q, k, v)
    assert 'kind = "pytorch"' in called.ir("planned")


class Called(flow.nn.Graph):
    """PyTorch's own function."""

    def build(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_rows_that_see_no_key() -> None:
    for fill in (-INF, -1e9, torch.finfo(torch.float32).min):
        mask = torch.zeros(3, 1, T, T, dtype=torch.bool)
        mask[1, ..., 50:], mask[2, 0, 7] = True, True

        def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, fill: float = fill) -> Tensor:
            return torch.softmax((q @ k.mT * D**-0.5).masked_fill(hidden, fill), -1) @ v

        check(attend, [*tensors(), mask])


def test_values_of_other_sizes() -> None:
    check(
        lambda q, k, v: SPELLINGS["plain"](q, k, torch.cat([v, v[..., :5]], -1))[..., :D],
        tensors(130),
    )


def test_dropout() -> None:
    """The same weights are dropped as where the softmax is written out."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT * D**-0.5, -1), 0.2) @ v

    results = []
    for recognize in (None, False):
        graph = Step(attend, recognize)
        args = tensors()
        torch.manual_seed(7)
        results.append([x.clone() for x in graph(*args)])
        assert ("gflow.attention_grad " in graph.ir("planned")) == (recognize is None)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["small", "float64", "converted", "switched off"])
def test_what_stays_written_out(what: str) -> None:
    args, attend, recognize = tensors(), SPELLINGS["plain"], None
    if what == "small":
        args = [x[:, :, :9].detach().requires_grad_() for x in args]
    elif what == "float64":
        args = [x.double().detach().requires_grad_() for x in args]
    elif what == "converted":
        attend = lambda q, k, v: torch.softmax((q @ k.mT).double(), -1).float() @ v  # noqa: E731
    else:
        recognize = False
    graph = Step(attend, recognize)
    graph(*args)
    assert "gflow.attention" not in graph.ir("planned")


def test_a_model_without_calls_of_pytorch() -> None:
    torch.manual_seed(0)
    model = Block(hiding)
    other, x = copy.deepcopy(model), torch.randn(3, T, 2 * D)
    mask = torch.rand(3, 1, 1, T) < 0.3

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 0.5))

        def build(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.model(x, mask)
            y.square().mean().backward()
            return y

    graph, optimizer = Train(), torch.optim.SGD(other.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        expected = other(x, mask)
        expected.square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(graph(x, mask), expected, rtol=1e-4, atol=1e-5)
    text = graph.ir("planned")
    assert text.count('kind = "attention"') == 2
    assert 'kind = "pytorch"' not in text

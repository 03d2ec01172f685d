"""gflow-recognize-attention: written-out attention becomes one op, forward and backward, with eager's results."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow as flow
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

T, D = 80, 16
INF = float("inf")


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ v


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax((q * D**-0.5) @ k.mT, dim=-1) @ v


def scaled_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q * 0.5, k.transpose(2, 3)) * 0.5, 3).matmul(v)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * D**-0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h = q.shape[:2]
    q, k, v = (x.reshape(b * h, -1, D) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v).view(b, h, -1, D)


def baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h = q.shape[:2]
    q, k, v = (x.reshape(b * h, -1, D) for x in (q, k, v))
    scores = torch.baddbmm(q.new_zeros(b * h, T, T), q, k.transpose(1, 2), alpha=0.25)
    return (scores.softmax(-1) @ v).view(b, h, -1, D)


def with_mask(mask: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(mask(q @ k.transpose(-2, -1) * D**-0.5), -1) @ v

    return attend


def in_blocks(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A mask of scores in another shape: keys as rows and columns, batches and heads as one dimension."""

    def mask(s: Tensor) -> Tensor:
        return change(s.view(-1, T, T // 8, 8)).view(s.shape)

    return with_mask(mask)


def other_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No attention: a softmax over parts of rows."""
    scores = q @ k.transpose(-2, -1)
    return scores.view(*scores.shape[:2], 2 * T, T // 2).softmax(-1).view(scores.shape) @ v


LOWER = torch.tril(torch.ones(T, T))
SPELLINGS: dict[str, Callable[..., Tensor]] = {
    "plain": plain,
    "scaled before": scaled_before,
    "scaled twice": scaled_twice,
    "einsum": by_einsum,
    "bmm": by_bmm,
    "baddbmm": baddbmm,
    "tril": with_mask(lambda s: s.masked_fill(torch.tril(torch.ones(T, T)) == 0, -INF)),
    "triu": with_mask(lambda s: s.masked_fill(torch.ones(T, T).triu(1).bool(), -INF)),
    "numbers added": with_mask(lambda s: s + torch.arange(T).to(s)),
    "triu added": with_mask(lambda s: s + torch.full((T, T), -INF).triu(1)),
    "where": with_mask(
        lambda s: torch.where(
            torch.ones(T, T, dtype=torch.bool).tril(), s, torch.finfo(s.dtype).min
        )
    ),
    "positions": with_mask(
        lambda s: s.masked_fill(torch.arange(T)[None] > torch.arange(T)[:, None], -1e9)
    ),
    "buffer": with_mask(lambda s: s.masked_fill(LOWER[:T, :T] == 0, -INF)),
    "band": with_mask(
        lambda s: s.masked_fill((torch.arange(T)[None] - torch.arange(T)[:, None]).abs() > 5, -INF)
    ),
    "triu added in blocks": in_blocks(
        lambda s: s + torch.full((T, T), -INF).triu(1).view(T, T // 8, 8)
    ),
    "triu in blocks": in_blocks(
        lambda s: s.masked_fill(torch.ones(T, T).triu(1).view(T, T // 8, 8) != 0, -INF)
    ),
    "band in blocks": in_blocks(
        lambda s: s.masked_fill((torch.arange(T // 8)[:, None] == 3).expand(T, -1, 8), -INF)
    ),
}
CAUSAL = {
    "triu added in blocks",
    "triu in blocks",
    "tril",
    "triu",
    "triu added",
    "where",
    "positions",
}


class Block(nn.Module):
    def __init__(self, attend: Callable[..., Tensor], heads: int = 2) -> None:
        super().__init__()
        self.project, self.attend, self.heads = nn.Linear(D * heads, 3 * D * heads), attend, heads

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            a.view(b, t, self.heads, D).transpose(1, 2) for a in self.project(x).chunk(3, -1)
        )
        return self.attend(q, k, v, *more).transpose(1, 2).reshape(b, t, c)


class Step(flow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config.enable_attention_recognition()
        self.add_optimizer(torch.optim.SGD(model.parameters(), 0.5))

    def build(self, *args: Tensor) -> Tensor:
        y = self.model(*args)
        y.square().mean().backward()
        return y


class Infer(flow.nn.Graph):
    def __init__(self, target: Callable[..., Tensor]) -> None:
        super().__init__()
        self.target = target
        self.config.enable_attention_recognition()

    def build(self, *args: Tensor) -> Tensor:
        return self.target(*args)


def ops_of(graph: flow.nn.Graph) -> str:
    return graph.ir("planned")


def assert_as_eager(attend: Callable[..., Tensor], *more: Tensor, steps: int = 2) -> str:
    """Training steps equal eager's. Returns the IR."""
    torch.manual_seed(0)
    model = Block(attend).double()
    other = copy.deepcopy(model)
    graph, optimizer = Step(model), torch.optim.SGD(other.parameters(), 0.5)
    for _ in range(steps):
        x = torch.randn(3, T, 2 * D, dtype=torch.float64)
        optimizer.zero_grad()
        expected = other(x, *more)
        expected.square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(graph(x, *more), expected, equal_nan=True)
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, equal_nan=True)
    return ops_of(graph)


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    text = assert_as_eager(SPELLINGS[name])
    assert "gflow.attention " in text
    assert "gflow.attention_grad " in text
    assert ("causal = true" in text) == (name in CAUSAL)


def hiding(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT * D**-0.5).masked_fill(hidden, -INF), -1) @ v


def test_a_mask_that_may_hide_all_keys() -> None:
    """The softmax of -inf alone is NaN, and so is the gradient by v that eager gives."""
    mask = torch.zeros(3, 1, 1, T, dtype=torch.bool)
    mask[1, ..., 50:] = True
    assert "gflow.attention_grad " in assert_as_eager(hiding, mask)
    mask[2] = True
    assert "gflow.attention_grad " in assert_as_eager(hiding, mask)
    some = torch.zeros(3, 1, T, T, dtype=torch.bool)
    some[1, 0, 7] = True
    assert "gflow.attention_grad " in assert_as_eager(hiding, some, steps=1)


def test_masks_of_large_numbers() -> None:
    """A row that sees no key has equal weights, as in eager; two such masks are one after the other."""
    low = torch.finfo(torch.float64).min

    def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.mT * D**-0.5 + bias
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), low)
        return torch.softmax(scores.masked_fill(hidden[:, None, None], low), -1) @ v

    hidden = torch.zeros(3, T, dtype=torch.bool)
    hidden[0], hidden[1, :9] = True, True
    bias = torch.randn(2, T, T, dtype=torch.float64)
    # gradients of such rows need more than the logarithm of their sum, so that it is left as it is
    assert "gflow.attention" not in assert_as_eager(attend, hidden, bias)

    def taken(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        return attend(q, k, v, hidden, torch.zeros(T, T, dtype=torch.float64))

    assert "gflow.attention_grad " in assert_as_eager(taken, hidden)

    graph, args = Infer(attend), [torch.randn(3, 2, T, D, dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        torch.testing.assert_close(graph(*args, hidden, bias), attend(*args, hidden, bias))
    assert "gflow.attention " in ops_of(graph)


def returned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + weights.sum(-1, keepdim=True) * weights.amax(-1, keepdim=True)


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.softmax(q @ k.mT, -1) @ torch.cat([v, v.exp()], -1))[..., :D]


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(q @ k.mT / 5) * 5, -1) @ v


def biased_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.softmax(scores + scores.mT, -1) @ v


def scaled_by_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT) * 0.0, -1) @ v


def scarcely_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Other scores are lower than those that the mask sets."""
    lower = torch.ones(T, T, dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT * 1e7).masked_fill(~lower, -2e4), -1) @ v


LEFT = [
    returned,
    over_queries,
    wide,
    soft_capped,
    biased_by_scores,
    scaled_by_zero,
    scarcely_masked,
    other_rows,
]


@pytest.mark.parametrize("attend", LEFT)
def test_what_is_left_as_it_is(attend: Callable[..., Tensor]) -> None:
    assert "gflow.attention" not in assert_as_eager(attend)


def test_a_bias_that_is_learnt() -> None:
    class Biased(Block):
        def __init__(self) -> None:
            super().__init__(plain)
            self.bias = nn.Parameter(torch.randn(2, T, T))

        def forward(self, x: Tensor, *_: Any) -> Tensor:
            self.attend = with_mask(lambda s: s + self.bias)
            return super().forward(x)

    torch.manual_seed(0)
    model = Biased()
    other, x = copy.deepcopy(model), torch.randn(3, T, 2 * D)
    graph = Step(model)
    expected = other(x)
    expected.square().mean().backward()
    torch.testing.assert_close(graph(x), expected)
    assert other.bias.grad is not None
    torch.testing.assert_close(model.bias, other.bias - 0.5 * other.bias.grad)


def test_a_bias_of_values_that_are_read_twice() -> None:
    """Each is looked at once: paths to the bias are 2^40."""

    class Biased(Block):
        def __init__(self) -> None:
            super().__init__(plain)
            self.bias = nn.Parameter(torch.randn(2, T, T))

        def forward(self, x: Tensor, *_: Any) -> Tensor:
            bias = self.bias.expand(len(x), -1, -1, -1)
            for _step in range(40):
                bias = bias * 0.25 + bias
            self.attend = with_mask(lambda s: s + bias * 1e-4)
            return super().forward(x)

    torch.manual_seed(0)
    model, x = Biased(), torch.randn(3, T, 2 * D)
    with torch.no_grad():
        torch.testing.assert_close(Infer(model)(x), model(x))


def test_inference() -> None:
    model = Block(SPELLINGS["tril"])
    x = torch.randn(2, T, 2 * D)

    graph = Infer(model)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))
    assert "gflow.attention " in ops_of(graph)


def test_a_bias_in_another_shape() -> None:
    """One for rows and one for columns of the keys, as of images, with batches and heads as one dimension."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, T, D) for _ in range(3))
    rows, columns = torch.randn(6, T, T // 8, 1), torch.randn(6, T, 1, 8)
    attend = in_blocks(lambda s: s + rows + columns)
    graph = Infer(attend)
    with torch.no_grad():
        torch.testing.assert_close(graph(q, k, v), attend(q, k, v))
        torch.testing.assert_close(flow.compile(attend)(q, k, v), attend(q, k, v))
    assert "gflow.attention " in ops_of(graph)


class Partly(Block):
    """Of q, k and v one alone is learnt."""

    def __init__(self, which: int) -> None:
        super().__init__(plain)
        self.which, self.one = which, nn.Linear(2 * D, 2 * D)
        self.project.requires_grad_(False)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        parts = list(self.project(x).chunk(3, -1))
        parts[self.which] = self.one(parts[self.which])
        q, k, v = (a.view(len(x), T, 2, D).transpose(1, 2) for a in parts)
        return plain(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("which", range(3))
def test_frozen_projections(which: int) -> None:
    torch.manual_seed(0)
    model, x = Partly(which), torch.randn(2, T, 2 * D)
    other, step = copy.deepcopy(model), Step(model)
    expected = other(x)
    expected.square().mean().backward()
    torch.testing.assert_close(step(x), expected)
    assert other.one.weight.grad is not None
    torch.testing.assert_close(model.one.weight, other.one.weight - 0.5 * other.one.weight.grad)
    assert "gflow.attention_grad " in ops_of(step)


def test_a_learnt_value_alone_by_another_transpose() -> None:
    """The gradient by v where its other factor exchanges other dimensions than the last two."""

    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Parameter(torch.randn(T, T, D))

        def forward(self, q: Tensor) -> Tensor:
            weights = torch.softmax(q @ q.mT, -1)
            y = weights @ self.v
            return y.transpose(0, 1) * torch.arange(1.0, T + 1)[:, None, None]

    torch.manual_seed(0)
    model, q = Values().double(), torch.randn(T, T, D).double()
    other, step = copy.deepcopy(model), Step(model)
    expected = other(q)
    expected.square().mean().backward()
    torch.testing.assert_close(step(q), expected)
    assert other.v.grad is not None
    torch.testing.assert_close(model.v, other.v - 0.5 * other.v.grad)


def test_masks_from_outside_beside_half_scores() -> None:
    """Hidden scores are equal numbers in eager, and would be infinite here."""

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT * D**-0.5 + bias).float(), -1).to(v.dtype) @ v

    torch.manual_seed(0)
    args = [torch.randn(2, 2, T, D).bfloat16() for _ in range(3)]
    bias = torch.zeros(2, 1, 1, T).bfloat16()
    bias[1] = torch.finfo(torch.bfloat16).min
    graph = Infer(attend)
    with torch.no_grad():
        close = {"atol": 2e-2, "rtol": 2e-2}
        torch.testing.assert_close(graph(*args, bias), attend(*args, bias), **close)
    assert "gflow.attention" not in ops_of(graph)


def test_dropout_is_taken_where_a_kernel_knows_it() -> None:
    torch.manual_seed(0)
    model = Block(lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.1) @ v)
    graph = Step(model.double())
    graph(torch.randn(2, T, 2 * D, dtype=torch.float64))
    assert "gflow.attention" not in ops_of(graph)
    for target, taken in (("cpu", False), ("cuda:90", True)):
        text = run(graph.ir("traced", generic=True), target)
        assert ("gflow.attention_grad" in text) == taken
        assert ("dropout = " in text) == taken


def run(text: str, target: str) -> str:
    """The IR after the pass."""
    passes = f"cse,gflow-simplify,cse,gflow-recognize-attention{{target={target}}},gflow-simplify"
    with make_context():
        module = ir.Module.parse(text)
        run_pipeline(module, f"builtin.module(func.func({passes}))")
        return str(module)

"""Dimensions marked with `gflow.dynamic_dim`: one program for a range of sizes, against eager PyTorch."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gflow
from gflow.dialects.extents import STAND_INS, Piece, Symbol, pieces, size_of_program, typical

SIZES = (8, 1, 32, 7, 13)


class Step(gflow.nn.Graph):
    """A training step of a classifier; `loss` is another one's, to be run by eager, too."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return step(self.model, x, y)


class Apply(gflow.nn.Graph):
    def __init__(self, model: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model

    def build(self, *args: Tensor) -> Any:
        return self.model(*args)


def step(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = model(x)
    loss = F.cross_entropy(out, y.reshape(-1)) + 0.1 * out.square().mean() / x.shape[0] ** 0.5
    loss.backward()
    return loss, out


def one_program(graph: gflow.nn.Graph) -> bool:
    return len(graph._state.plans) == 1


def train(
    model: nn.Module,
    inputs: Callable[[int], tuple[Tensor, Tensor]],
    *,
    sizes: tuple[int, ...] = SIZES,
    rate: float = 0.05,
    tolerance: float = 2e-4,
) -> None:
    """Steps of many sizes: losses, results, parameters and buffers as eager has them."""
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    theirs = torch.optim.SGD(eager.parameters(), lr=rate, momentum=0.9)
    graph = Step(model, optimizer)
    for k, n in enumerate(sizes):
        x, y = inputs(n)
        if k == 0:
            gflow.dynamic_dim(x, 0, min=min(sizes), max=32)
            gflow.dynamic_dim(y, 0, min=min(sizes), max=32)
        got, want = graph(x, y), step(eager, x, y)
        theirs.step()
        theirs.zero_grad()
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=tolerance, atol=tolerance)
        for (name, a), b in zip(model.state_dict().items(), eager.state_dict().values()):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=f"{name} at {n}")
    assert one_program(graph)


def infer(
    model: Callable[..., Any],
    inputs: Callable[[int], tuple[Tensor, ...]],
    *,
    dims: tuple[int, ...] = (0,),
    sizes: tuple[int, ...] = (4, 1, 16, 7),
    tolerance: float = 1e-5,
) -> None:
    """Calls of many sizes against eager."""
    graph = Apply(model)
    with torch.no_grad():
        for k, n in enumerate(sizes):
            args = inputs(n)
            if k == 0:
                for arg in args:
                    for d in dims:
                        gflow.dynamic_dim(arg, d, min=min(sizes), max=16)
            got, want = tree_leaves(graph(*args)), tree_leaves(model(*args))
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert one_program(graph)


def labels(n: int) -> Tensor:
    return torch.randint(0, 5, (n,))


# -- training


def test_perceptron() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    train(model, lambda n: (torch.randn(n, 10), labels(n)))


def test_convolutions_and_batch_statistics() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.Hardtanh(0, 6),
        nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    train(model, lambda n: (torch.randn(n, 3, 12, 12), labels(n)))


def test_convolutions_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of patches, and of what follows a product, that are empty for small sizes."""
    from gflow.compiler.kernel.selection.cpu import rows
    from gflow.compiler.kernel.selection.cpu.convolutions import patches
    from gflow.compiler.targets.processors import ANY

    monkeypatch.setattr(patches, "ANY", replace(ANY, gathered=1 << 14))
    monkeypatch.setattr(rows, "ANY", replace(ANY, piece=1 << 12, large=0))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, stride=2),
        nn.GELU(), nn.Conv2d(16, 32, 1), nn.ReLU(), nn.Flatten(1), nn.Linear(32 * 16, 5),
    )  # fmt: skip
    train(model, lambda n: (torch.randn(n, 3, 8, 8), labels(n)))


class Block(nn.Module):
    """A decoder of one layer."""

    def __init__(self, width: int = 32, heads: int = 4, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.tokens, self.positions = nn.Embedding(50, width), nn.Embedding(16, width)
        self.head = nn.Linear(width, 5)

    def forward(self, t: Tensor) -> Tensor:
        b, length = t.shape
        x = self.tokens(t) + self.positions(torch.arange(length))
        parts = self.qkv(self.norm(x)).view(b, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, length, -1))
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x).view(b * length, 5)


@pytest.mark.parametrize("fused", [False, True])
def test_decoder(fused: bool) -> None:
    train(
        Block(fused=fused),
        lambda n: (torch.randint(0, 50, (n, 8)), torch.randint(0, 5, (n, 8))),
        rate=0.01,
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def test_recurrence() -> None:
    train(Recurrent(), lambda n: (torch.randn(n, 4, 8), labels(n)), sizes=(8, 1, 32, 7))


def test_optimizer_that_makes_state_from_gradients_and_clipping() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    eager = copy.deepcopy(model)
    make = lambda m: torch.optim.AdamW(  # noqa: E731
        [{"params": list(m.parameters()), "clip_grad_max_norm": 0.5}], lr=0.01
    )
    graph, theirs = Step(model, make(model)), make(eager)
    for k, n in enumerate((8, 3, 16)):
        x, y = torch.randn(n, 6), labels(n)
        if k == 0:
            for t in (x, y):
                gflow.dynamic_dim(t, 0, max=16)
        graph(x, y)
        step(eager, x, y)
        nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
        theirs.step()
        theirs.zero_grad()
        for a, b in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert one_program(graph)


# -- operators

_OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "outer product": lambda x: x @ x.T,
    "softmax over it": lambda x: (x.softmax(0), x.logsumexp(0), x.T.softmax(-1)),
    "sums, extremes": lambda x: (x.sum(), x.sum(0), x.amax(0), x.mean(), x.argmax(0), x.argmax()),
    "sorting": lambda x: (x.sort(0)[0], x.topk(2, 1)[0], x.cumsum(0)),
    "moving": lambda x: (x.flip(0), x.roll(1, 0), F.pad(x, (1, 2, 0, 1)), x.repeat(2, 3)),
    "joining": lambda x: (torch.cat([x, 2 * x, torch.ones(3, 5)]), torch.stack([x, x], 1).flatten(0, 1)),
    "sizes": lambda x: (
        torch.arange(x.shape[0]) + x[:, 0],
        torch.full((x.shape[0], 2), x.shape[0]),
        x * x.shape[0] ** 0.5 / (x.shape[0] + 1),
        torch.where(torch.arange(x.shape[0])[:, None] < 2, x, -x),
    ),
    "shapes": lambda x: (
        x.view(-1, 5, 1).permute(1, 2, 0).reshape(-1).relu(),
        x.view(-1, 1, 1, 5) @ torch.ones(7, 5, 3),
        torch.einsum("ni,ki->nk", x, x).tril(),
        x.gather(1, torch.zeros(x.shape[0], 2, dtype=torch.long)),
    ),
    "doubles": lambda x: (x.double() @ torch.ones(5, 3).double()).exp(),
    "slices": lambda x: (x[:20] + 1, x[: x.shape[0]] * 2, torch.ones(16, 5)[: x.shape[0]] + x),
    "last": lambda x: (x[-1], x[0], x.norm(dim=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", _OPERATORS)
def test_operators(name: str) -> None:
    infer(_OPERATORS[name], lambda n: (torch.randn(n, 5),))


def test_operators_that_need_two() -> None:
    infer(
        lambda x: (x.std(0), x.var(), x[:-1].sum(0), 2 * x[1:], x.diff(dim=0)),
        lambda n: (torch.randn(n, 5),),
        sizes=(4, 2, 16, 7),
    )


def test_lengths_and_image_sizes() -> None:
    model = Block().eval()
    infer(model, lambda n: (torch.randint(0, 50, (3, n)),), dims=(1,))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    infer(conv, lambda n: (torch.randn(2, 3, n, n),), dims=(2, 3), sizes=(4, 16, 7, 5))


def test_halves() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).bfloat16()
    infer(model, lambda n: (torch.randn(n, 5).bfloat16(),), tolerance=2e-2)


def test_dropout_draws_for_each_size() -> None:
    graph = Apply(lambda x: F.dropout(x, 0.5, training=True))
    x = gflow.dynamic_dim(torch.ones(64, 8), 0, max=64)
    for n in (64, 5, 33):
        out = graph(x if n == 64 else torch.ones(n, 8))
        assert out.shape == (n, 8)
        assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert one_program(graph)


def _random_program(choose: random.Random) -> Callable[[Tensor], Any]:
    """A chain of ops on an [n, 6] tensor, as a function of it."""
    weights = [torch.randn(6, 6) for _ in range(2)]
    bank: list[Callable[[Tensor], Tensor]] = [
        torch.tanh, torch.relu, lambda x: x.softmax(1), lambda x: x - x.mean(0),
        lambda x: x * x.sum(1, keepdim=True), lambda x: x @ weights[0], lambda x: x @ weights[1] + x,
        lambda x: (x @ x.T) @ x / x.shape[0], lambda x: x.flip(0), lambda x: torch.cat([x, x])[: x.shape[0]],
        lambda x: x.T.contiguous().relu().T, lambda x: x.reshape(-1, 3).sum(1).view(-1, 2).repeat(1, 3),
        lambda x: x / (1 + x.square().sum(0)), lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
        lambda x: F.layer_norm(x, (6,)), lambda x: x + x.amax(0), lambda x: x.softmax(0),
    ]  # fmt: skip
    chosen = [choose.choice(bank) for _ in range(8)]
    ends = [lambda x: x.sum(0), lambda x: x.mean(), lambda x: x]

    def program(x: Tensor) -> Any:
        for op in chosen:
            x = op(x)
        return [end(x) for end in ends]

    return program


@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed: int) -> None:
    torch.manual_seed(seed)
    choose = random.Random(seed)
    sizes = (choose.randint(1, 16), 1, 16, choose.randint(1, 16))
    infer(_random_program(choose), lambda n: (torch.randn(n, 6),), sizes=sizes, tolerance=2e-3)


# -- what a call may be


def test_later_calls_need_no_marks_and_modes_have_their_own_program() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    graph = Apply(model)
    with torch.no_grad():
        graph(gflow.dynamic_dim(torch.randn(4, 4), 0, max=8))
        graph(torch.randn(7, 4))
        assert one_program(graph)
        model.eval()
        x = torch.randn(3, 4)
        torch.testing.assert_close(graph(x), model(x))
        graph(torch.randn(5, 4))
    assert len(graph._state.plans) == 2


def test_results_are_the_callers_own() -> None:
    graph = Apply(lambda x: x + 1)
    x = gflow.dynamic_dim(torch.zeros(4, 2), 0, max=8)
    kept = [graph(x), graph(torch.ones(8, 2)), graph(torch.full((4, 2), 2.0))]
    for value, n, out in zip((1, 2, 3), (4, 8, 4), kept):
        assert out.shape == (n, 2)
        assert out.is_contiguous()
        assert out.untyped_storage().nbytes() == out.nbytes
        assert bool((out == value).all())


def test_a_program_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    model = nn.Linear(3, 2)
    for _ in range(2):
        graph = Apply(model)
        with torch.no_grad():
            graph(gflow.dynamic_dim(torch.randn(4, 3), 0, max=8))
            x = torch.randn(5, 3)
            torch.testing.assert_close(graph(x), model(x))
    assert "cache" in graph._state.latest.compiled.timings


@pytest.mark.parametrize(
    ("n", "message"),
    [(9, "input 'x' is 9, and it was marked with dynamic_dim(min=2, max=8)"), (1, "is 1, and it")],
)
def test_sizes_outside_of_the_range(n: int, message: str) -> None:
    graph = Apply(torch.relu)
    graph.build = lambda x: torch.relu(x)  # type: ignore[method-assign]
    graph(gflow.dynamic_dim(torch.randn(4, 2), 0, min=2, max=8))
    with pytest.raises(gflow.GraphInputError) as error:
        graph(torch.randn(n, 2))
    assert message in str(error.value)
    assert "test_dynamic.py:" in str(error.value)


def test_marks_that_do_not_fit() -> None:
    x = torch.randn(4, 2)
    for wrong, message in (
        (lambda: gflow.dynamic_dim([1], 0, max=4), "takes a tensor"),
        (lambda: gflow.dynamic_dim(x, 2, max=4), "dimension 2 does not exist; the tensor has 2"),
        (lambda: gflow.dynamic_dim(x, 0, min=0, max=4), "1 <= min < max"),
        (lambda: gflow.dynamic_dim(x, 0, max=2.5), "must be an integer"),
        (lambda: gflow.dynamic_dim(x, 0, max=3), "is 4, which is not in [1, 3]"),
    ):
        with pytest.raises(gflow.GraphInputError) as error:
            wrong()
        assert message in str(error.value)
    graph = Apply(lambda a, b: a.sum() + b.sum())
    a, b = gflow.dynamic_dim(torch.randn(4), 0, max=8), gflow.dynamic_dim(torch.randn(5), 0, max=8)
    with pytest.raises(gflow.GraphInputError, match="have one size in a call"):
        graph(a, b)
    with pytest.raises(gflow.GraphInputError, match="is not dense"):
        graph(gflow.dynamic_dim(torch.randn(4, 4).T, 0, max=8), torch.randn(2))


def test_marks_of_two_ranges(caplog: pytest.LogCaptureFixture) -> None:
    graph = Apply(lambda x: (x * 2).sum(1))
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for n, m in ((2, 6), (2, 9), (3, 7), (3, 40), (1, 40), (4, 1), (4, 64)):
            x = torch.randn(n, m)
            if m == 6:
                gflow.dynamic_dim(gflow.dynamic_dim(x, 0, max=4), 1, max=64)
            torch.testing.assert_close(graph(x), (x * 2).sum(1))
    assert [m.sizes for m in graph.explain_recompiles()] == [
        "args.0[0] in [1, 4], args.0[1] in [1, 64]"
    ]
    assert not caplog.records
    for shape, message in (
        ((5, 6), "0 of input 'args.0' is 5, and it was marked with dynamic_dim(min=1, max=4)"),
        ((2, 65), "1 of input 'args.0' is 65, and it was marked with dynamic_dim(min=1, max=64)"),
    ):
        with pytest.raises(gflow.GraphInputError) as error:
            graph(torch.randn(*shape))
        assert message in str(error.value)


def test_two_sizes_that_no_program_follows(caplog: pytest.LogCaptureFixture) -> None:
    graph = Apply(lambda x: x[:, : x.shape[1] // 2] * 2)
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for n, m in ((2, 7), (3, 9), (2, 31), (3, 30)):
            x = torch.randn(n, m, 3)
            gflow.dynamic_dim(gflow.dynamic_dim(x, 0, max=4), 1, max=64)
            torch.testing.assert_close(graph(x), x[:, : m // 2] * 2)
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "varies in the size in [1, 64] alone" in warning


_QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a number is needed for n": lambda x: x * float(x.shape[0]),
    "n = 2*k with k in": lambda x: x[: x.shape[0] // 2] * float(x.shape[0] // 2),
    "a size here is": lambda x: torch.ones(x.shape[0] % 97 + 1) * x.sum(),
}


@pytest.mark.parametrize("message", _QUESTIONS)
def test_questions_that_the_range_does_not_answer(message: str) -> None:
    graph = Apply(_QUESTIONS[message])
    with pytest.raises(gflow.GraphTraceError) as error:
        graph(gflow.dynamic_dim(torch.randn(100, 3), 0, max=2000))
    assert message in str(error.value)
    assert "test_dynamic.py:" in str(error.value)


_CHOICES: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "a bound": (lambda x: x if x.shape[0] > 4 else -x, 2),
    "one": (lambda x: x if x.shape[0] == 1 else -x, 2),
    "a size that fits": (lambda x: x + torch.ones(4, 3) if x.shape[0] == 4 else x.sum(0), 3),
}


@pytest.mark.parametrize("name", _CHOICES)
def test_choices_by_size_have_programs_for_each_side(name: str) -> None:
    function, programs = _CHOICES[name]
    graph = Apply(function)
    for k, n in enumerate((4, 1, 7, 8, 2, 5, 4, 3)):
        x = torch.randn(n, 3)
        torch.testing.assert_close(graph(x if k else gflow.dynamic_dim(x, 0, max=8)), function(x))
    assert len(graph._state.plans) <= programs


def test_what_needs_fixed_sizes_is_refused() -> None:
    class Sparse(Step):
        def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            gflow.nn.Graph.__init__(self)
            self.model = model
            self.add_optimizer(optimizer, is_sparse=True)

    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 5))
    graph = Sparse(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(gflow.GraphTraceError, match="an optimizer is sparse"):
        graph(gflow.dynamic_dim(torch.randint(0, 10, (4, 2)), 0, max=8), labels(4))


def test_listings_name_the_size() -> None:
    graph = Apply(nn.Linear(3, 2))
    graph(gflow.dynamic_dim(torch.randn(4, 3), 0, max=8))
    text = str(graph)
    assert "(SIZE:n in [1, 8])" in text
    assert "size=(n, 3)" in text
    assert str(1_000_000_007) not in text
    assert graph.memory().arena < 10_000


_WRONG: dict[str, Callable[[Tensor], Any]] = {
    "a view of more than there is": lambda x: x.as_strided((6, 3), (3, 1)),
    "a window larger than it is": lambda x: F.conv1d(x.T[None], torch.ones(1, 3, 4)),
}


@pytest.mark.parametrize("what", _WRONG)
def test_no_size_reads_what_is_not_there(what: str) -> None:
    graph, x = Apply(_WRONG[what]), torch.randn(8, 3)
    torch.testing.assert_close(graph(gflow.dynamic_dim(x, 0, max=8)), _WRONG[what](x))
    for n in (7, 3, 1, 6):
        x = torch.randn(n, 3)
        try:
            want = _WRONG[what](x)
        except RuntimeError:
            with pytest.raises((gflow.GraphError, ValueError, RuntimeError)):
                graph(x)
        else:
            torch.testing.assert_close(graph(x), want)


# -- integers that vary


def test_integers_of_the_ir_are_polynomials() -> None:
    symbol = Symbol("n", 1, 64)
    n = symbol.stand_in
    assert symbol.coefficients(3 * n * n - 2 * n + 5) == (5, -2, 3)
    assert symbol.text(4 * n - 1) == "4*n - 1"
    assert symbol.at(12 * n + 7, 5) == 67
    assert symbol.at(64, 5) == 64
    assert STAND_INS[0] != STAND_INS[1]


def test_the_middle_of_a_range_is_the_geometric_mean() -> None:
    symbol = Symbol("n", 2, 1024)
    with size_of_program(symbol):
        assert typical(3 * symbol.stand_in + 1) == 3 * 45 + 1
        assert typical(7) == 7
    both = Symbol("n", 2, 1024, second=Symbol("m", 1, 16)).standing(0)
    with size_of_program(both):
        assert typical(both.stand_in) == 45


def test_pieces_of_what_varies() -> None:
    assert pieces(10, 4) == [(0, 4), (4, 4), (8, 2)]
    symbol = Symbol("n", 1, 10)
    with size_of_program(symbol):
        n = symbol.stand_in
        assert pieces(n, 16) == [(0, n)]
        assert pieces(2 * n, 8) == [
            (0, Piece(2 * n, 0, 8)),
            (8, Piece(2 * n, 8, 8)),
            (16, Piece(2 * n, 16, 4)),
        ]
        assert Piece(2 * n, 8, 8).times(3, 2) == Piece(3 * n, 12, 12)
        with pytest.raises(ValueError, match="no integer"):
            Piece(n, 0, 4).times(1, 3)


def test_scratch_that_grows_with_the_size_is_planned_for_the_greatest() -> None:
    """Halves of a product are converted into scratch of 192 n + 1,024 bytes. At a stand-in for n that is more than
    anything of a fixed size; at n = 3 it is less, and values that lay behind it were overwritten."""

    class Step(gflow.nn.Graph):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))

        def build(self, y: torch.Tensor) -> torch.Tensor:
            x = self.model.weight
            product = x[2:, -8] @ y
            loss = x.square().mean() + product.square().mean() + self.model.scale.square().mean()
            loss.backward()
            return product

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(4, 16, 16, 8, dtype=torch.bfloat16))
    model.scale = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    graph = Step(model)
    gflow.dynamic_dim(y := torch.ones(8, 3, dtype=torch.bfloat16), 1, min=2, max=3)
    graph(y)
    (plan,) = graph._state.plans
    places = re.findall(r"arena:(\d+)|gflow.scratch = array<i64: (\d+)", plan.compiled.ir)
    assert places
    assert all(int(a or b) < 1 << 20 for a, b in places)

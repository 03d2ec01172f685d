"""Sizes that become dynamic by themselves, and what `explain_recompiles()` says."""

from __future__ import annotations

import copy
import functools
import logging
import numbers
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow


class Step(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        return loss


def graph_of(function: Any) -> Any:
    return gflow.nn.Graph.trace(function)


def count(graph: Any) -> int:
    return len(graph.explain_recompiles())


def test_training_steps_of_many_sizes_have_two_programs(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    eager = copy.deepcopy(model)
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)  # noqa: E731
    graph, theirs = Step(model, make(model)), make(eager)
    with caplog.at_level(logging.INFO, logger="gflow"):
        for n in (8, 3, 5, 40, 8, 2):
            x, y = torch.randn(n, 4), torch.randn(n, 1)
            want = (eager(x) - y).square().mean()
            want.backward()
            theirs.step()
            theirs.zero_grad()
            torch.testing.assert_close(graph(x, y), want.detach())
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    first, second = graph.explain_recompiles()
    assert first.reason == "the first call"
    assert first.sizes == ""
    assert "[3, 4]" in second.reason
    assert "[8, 4]" in second.reason
    assert second.sizes == "x[0], y[0] in [2, 1024]"
    assert second.seconds > 0
    assert sum("are dynamic from here on" in r.message for r in caplog.records) == 1


def test_sizes_zero_and_one_and_beyond_the_range_have_programs_of_their_own() -> None:
    graph = graph_of(lambda x: (x.sum(0), x @ torch.ones(3, 2)))
    for n in (4, 6, 1, 0, 1, 0, 7, 1500, 2000, 5):
        x = torch.randn(n, 3)
        for a, b in zip(graph(x), (x.sum(0), x @ torch.ones(3, 2))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    assert count(graph) == 5
    assert graph.explain_recompiles()[-1].sizes == "args.0[0] in [2, 8192]"


def test_a_choice_by_size_has_a_range_for_each_way() -> None:
    graph = graph_of(lambda x: x + 1 if x.shape[0] > 5 else x - 1)
    for n in (8, 3, 5, 9, 4, 40):
        assert graph(torch.zeros(n, 2)).unique().tolist() == [1.0 if n > 5 else -1.0]
    sizes = [made.sizes for made in graph.explain_recompiles()]
    assert sizes == ["", "args.0[0] in [2, 5]", "args.0[0] in [6, 1024]"]


def test_a_table_ends_a_range() -> None:
    """As the positions of BERT do."""
    positions = torch.arange(12.0)
    graph = graph_of(lambda x: x + positions[: x.shape[1]])
    for n in (4, 7, 12, 2):
        torch.testing.assert_close(graph(torch.ones(3, n)), 1 + positions[:n].expand(3, n))
    assert [made.sizes for made in graph.explain_recompiles()] == ["", "args.0[1] in [2, 12]"]


def test_what_no_part_of_a_range_answers(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(lambda x: x * float(x.shape[0]))
    for n in (8, 3, 5, 6):
        assert graph(torch.ones(n, 2)).unique().tolist() == [n]
    assert count(graph) == 4
    assert sum("is compiled for each size of " in r.message for r in caplog.records) == 1
    assert "a number is needed for n" in graph.explain_recompiles()[1].reason


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.shape[0]
        self.seen.append(x.shape)
        return x * 2


@pytest.mark.filterwarnings("ignore:build")
def test_no_symbol_stays_behind() -> None:
    graph = graph_of(lambda x: (x * 2, x.shape[0], x.shape))
    for n in (8, 3, 5):
        assert graph(torch.ones(n, 2))[1:] == (n, torch.Size([n, 2]))

    class Calls(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.m = Keeps()

        def build(self, x: Tensor) -> Tensor:
            return self.m(x)

    calls = Calls()
    for n in (8, 3, 5):
        calls(torch.ones(n, 2))
        assert type(calls.m.last) is int
        assert calls.m.last == n
    assert [tuple(s) for s in calls.m.seen] == [(8, 2), (3, 2), (5, 2)]


def test_sizes_that_vary_apart() -> None:
    graph = graph_of(lambda x, y: x @ y)
    for n, m in ((4, 5), (6, 7), (6, 9), (8, 9), (3, 9), (3, 5)):
        x, y = torch.randn(n, 3), torch.randn(3, m)
        torch.testing.assert_close(graph(x, y), x @ y)
    again = graph_of(lambda x, y: torch.cat([x, y]))
    for n, m in ((4, 4), (6, 6), (6, 9), (7, 7), (7, 3)):
        assert again(torch.ones(n), torch.zeros(m)).sum() == n


def test_two_sizes_vary_in_one_program() -> None:
    graph = graph_of(lambda x: (x.softmax(1) / x.shape[1]).sum(1) * x.shape[0])
    for shape in ((2, 6), (3, 9), (2, 7), (5, 5), (40, 3), (2, 500), (7, 1)):
        x = torch.randn(*shape)
        torch.testing.assert_close(graph(x), (x.softmax(1) / shape[1]).sum(1) * shape[0])
    made = [m.sizes.replace("args.0", "x") for m in graph.explain_recompiles()]
    assert made == ["", "x[0] in [2, 1024], x[1] in [2, 1024]", "x[0] in [2, 1024] for x[1] = 1"]


def test_of_three_sizes_those_with_most_values_vary(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(lambda x: x.exp().sum(2))
    calls = [(2, 6, 4), (3, 9, 4), (2, 7, 5), (5, 10, 4), (6, 11, 5), (4, 12, 6), (9, 5, 6)]
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for shape in calls:
            x = torch.randn(*shape)
            torch.testing.assert_close(graph(x), x.exp().sum(2))
    made = [m.sizes.replace("args.0", "x") for m in graph.explain_recompiles()]
    assert [m.partition(" for ")[2] for m in made] == ["", "", "x[2] = 5", "x[2] = 6"]
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "args.0[2] vary beside args.0[0], args.0[1]" in warning
    assert "at most two dynamic sizes" in warning


def test_where_one_size_cannot_vary_another_does(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(lambda x: x * float(x.shape[1]))
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for shape in ((4, 6), (5, 9), (6, 9), (7, 6), (8, 9)):
            x = torch.randn(*shape)
            torch.testing.assert_close(graph(x), x * shape[1])
    assert count(graph) == 3
    assert graph.explain_recompiles()[1].sizes == "args.0[0] in [2, 1024] for args.0[1] = 9"
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "for each size of args.0[1]" in warning


def test_views_and_other_strides() -> None:
    graph = graph_of(lambda x: x.T.contiguous() * 2)
    for n in (4, 6, 5):
        for x in (torch.randn(n, 3), torch.randn(3, n).T, torch.randn(n, 6)[:, ::2]):
            torch.testing.assert_close(graph(x), x.T * 2)


def test_switched_off() -> None:
    graph = graph_of(lambda x: x + 1)
    graph.config.enable_dynamic_shapes(False)
    for n in (2, 3, 4):
        graph(torch.ones(n))
    assert count(graph) == 3
    fast = gflow.compile(lambda x: x + 1, dynamic=False)
    for n in (2, 3, 4):
        fast(torch.ones(n))
    assert len(fast.explain_recompiles()) == 3
    with pytest.raises(gflow.GraphError, match="enable_dynamic_shapes"):
        graph.config.enable_dynamic_shapes("no")
    with pytest.raises(gflow.GraphError, match="enable_dynamic_shapes"):
        gflow.compile(lambda x: x, dynamic="no")(torch.ones(2))


def test_compiled_functions_and_modules() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    fast = gflow.compile(module)
    with torch.no_grad():
        for n in (2, 3, 4, 9):
            x = torch.randn(n, 3)
            torch.testing.assert_close(fast(x), module(x))
    assert len(fast.explain_recompiles()) == 2


def test_gradients_through_calls_of_many_sizes() -> None:
    """One pair of programs for a range; a backward may run after later calls of other sizes."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    eager = copy.deepcopy(module)
    fast = gflow.compile(module)
    total, wanted = [], []
    for n in (4, 6, 5, 9, 1):
        x = torch.randn(n, 3)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        total.append((mine, fast(mine).square().sum() / n))
        wanted.append((theirs, eager(theirs).square().sum() / n))
    sum(loss for _, loss in total).backward()
    sum(loss for _, loss in wanted).backward()
    for (a, _), (b, _) in zip(total, wanted):
        torch.testing.assert_close(a.grad, b.grad)
    for p, q in zip(module.parameters(), eager.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
    sizes = [made.sizes for made in fast.explain_recompiles()]
    assert sizes == ["", "args.0[0] in [2, 1024]", ""] or sizes == ["", "input[0] in [2, 1024]", ""]


def test_reasons() -> None:
    class Apply(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.factor = nn.Dropout(0.5), 2.0

        def build(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return self.model(x) * self.factor * scale

    graph = Apply()
    x = torch.ones(4)
    graph(x)
    graph.model.eval()
    graph(x)
    graph.factor = 3.0
    graph(x)
    graph(x, 0.5)
    graph(x.double())
    graph.config.set_cache_size(1)
    graph(x)
    graph.config.enable_compress_memory(False)
    graph(x)
    reasons = [made.reason for made in graph.explain_recompiles()]
    expected = (
        "the first call",
        "from train to eval mode",
        "graph.factor is 3.0, and was 2.0",
        "input 'scale' is a float that varies",
        "dtype float64",
        "was dropped",
        "all programs were dropped",
    )
    assert len(reasons) == len(expected)
    for reason, part in zip(reasons, expected):
        assert part in reason
    assert str(graph.explain_recompiles()).count("\n") == len(expected) - 1
    assert str(Apply().explain_recompiles()) == "no compilations"


def test_settings_that_want_fixed_sizes() -> None:
    for settle in (
        lambda config: config.set_memory_budget("1GB"),
        lambda config: config.enable_dynamic_shapes(False),
    ):
        graph = graph_of(lambda x: x + 1)
        settle(graph.config)
        for n in (2, 3, 4):
            graph(torch.ones(n))
        assert [made.sizes for made in graph.explain_recompiles()] == ["", "", ""]


def test_a_range_ends_where_memory_for_its_greatest_size_would_be_much() -> None:
    """A row takes 3 MiB, 1,024 of them 3 GiB."""
    graph = graph_of(lambda x: x.expand(-1, 1 << 18).sort(-1).values.amax(-1))
    for n in (2, 3, 2):
        x = torch.randn(n, 1)
        torch.testing.assert_close(graph(x), x[:, 0])
    assert count(graph) == 2
    (dynamic,) = (p.dynamic for p in graph._state.plans if p.dynamic is not None)
    assert 3 <= dynamic.sizes.most <= 512


def test_an_error_of_the_compiler_itself_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda x: x + 1)
    graph(torch.ones(3))

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("broken")

    monkeypatch.setattr("gflow.call.programs.compile_plan", fails)
    with pytest.raises(KeyError, match="broken"):
        graph(torch.ones(4))


def test_scratch_that_grows_with_the_size() -> None:
    """Halves of a convolution are converted piece by piece: memory is for the greatest size."""

    class Convolve(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.config.enable_amp(dtype=torch.bfloat16)

        def build(self, x: Tensor, w: Tensor) -> Tensor:
            return nn.functional.conv3d(x, w)

    graph, w = Convolve(), torch.randn(2, 3, 1, 2, 1)
    with torch.no_grad():
        for n in (7, 12, 2, 40):
            x = torch.randn(1, 3, 8, n, 8)
            torch.testing.assert_close(
                graph(x, w).float(), nn.functional.conv3d(x, w), atol=0.2, rtol=0.05
            )


def test_sizes_that_fall_as_another_grows() -> None:
    """A size of 4 - n, of which no range is compiled: a program for each size."""
    graph = graph_of(lambda x: x[1:2][:, x.shape[0] :] * 2)
    for n in (2, 4, 3):
        x = torch.randn(n, 4)
        torch.testing.assert_close(graph(x), x[1:2][:, n:] * 2)


def test_a_backward_that_asks_for_a_size() -> None:
    """The gradient of a cumulative product needs the number: a program for each size."""
    function = gflow.compile(lambda x: x.view(-1).cumprod(0))
    for n in (2, 5, 3):
        x = torch.randn(1, n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        function(x).sum().backward()
        y.view(-1).cumprod(0).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_squares_of_a_size_through_an_op_that_is_decomposed() -> None:
    """The stand-in's square has no number of bytes: the op runs as a whole."""

    class Bessel(gflow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return torch.i0(x) + 1

    graph = Bessel()
    for n in (4, 7, 12):
        x = torch.randn(1, n, 8, n)
        torch.testing.assert_close(graph(x), torch.i0(x) + 1)


def test_text_of_a_size_is_the_numbers() -> None:
    """Of a size that varies it is an error, so that each size has its program."""
    found = gflow.compile(
        lambda x: (x * 2, f"{x.shape[0]} {x.shape[1]:03} {x.shape[0] / 2}", {str(len(x)): 1})
    )
    for n in (3, 2, 5):
        y, text, table = found(torch.ones(n, 3))
        assert y.shape == (n, 3)
        assert (text, table) == (f"{n} 003 {n / 2}", {str(n): 1})
    marked = gflow.compile(lambda x: (x, repr(x.shape[0])), dynamic=True)
    assert [marked(torch.ones(n, 3))[1] for n in (3, 2, 5)] == ["3", "2", "5"]


def pair(n: Any) -> Any:
    return (n, 2) if isinstance(n, int) else n


def matched(x: Tensor) -> Tensor:
    match x.shape:
        case (int(), 3):
            return x * 2
    return x * 3


@functools.singledispatch
def by_kind(n: Any) -> int:
    return 3


@by_kind.register
def _(n: int) -> int:
    return 2


#: what asks for the type of a size
TYPES: dict[str, Any] = {
    "isinstance": lambda x: x * (2 if isinstance(x.shape[0], int) else 3),
    "isinstance of several": lambda x: x * (2 if isinstance(x.shape[0] + 1, (str, float, int)) else 3),
    "a quotient": lambda x: x * (2 if isinstance(x.numel() / 7, float) else 3),
    "an abstract class": lambda x: x * (2 if isinstance(x.size(0), numbers.Integral) else 3),
    "the exact type": lambda x: x * (2 if type(x.shape[0]) is int and type(x.shape[0] * 2) in (int, float) else 3),
    "its class": lambda x: x * (2 if x.shape[0].__class__ is int else 3),
    "match": matched,
    "singledispatch": lambda x: x * by_kind(x.shape[0]),
    "a comparison": lambda x: x * (2 if (x.shape[0] > 1) is True else 3) + [x.shape[0] == 1, True].index(True),
    "a number of a comparison": lambda x: x * (1 + (x.shape[0] > 1)),
    "a table of types": lambda x: x * {int: 2, float: 3}.get(type(x.shape[0]), 5),
    "types of classes": lambda x: x * (2 if type(type(x.size(0))) is type and isinstance(type(x.size(0)), type) else 3),
    "a helper": lambda x: x.new_ones(pair(x.shape[0])).sum() * x,
    "a layer": lambda x: nn.functional.pad(x, (0, x.shape[0])),
    "the text of a comparison": lambda x: x * {"True": 2, "False": 3}.get(f"{x.shape[0] > 1}", 5),
    "rounded": lambda x: x * round(x.shape[0], -1),
}  # fmt: skip


@pytest.mark.parametrize("what", TYPES)
def test_the_types_of_sizes_are_those_of_eager_calls(what: str) -> None:
    function = TYPES[what]
    compiled = gflow.compile(function)
    for n in (3, 5, 2, 14, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), function(x))
    assert count(compiled) == (5 if what == "rounded" else 2)
    assert "type" not in globals()
    assert not {"__getattribute__", "__class__"} & {*vars(torch.SymInt)}


def test_sizes_among_the_results_of_a_call_with_gradients_are_numbers() -> None:
    found = gflow.compile(lambda x: (x * 2, x.shape, [len(x) + 1]))
    for n in (3, 2, 5):
        x = torch.ones(n, 3, requires_grad=True)
        y, shape, (more,) = found(x)
        y.sum().backward()
        assert [type(k) for k in (*shape, more)] == [int] * 3
        assert (*shape, more) == (n, 3, n + 1)
        assert torch.equal(x.grad, torch.full((n, 3), 2.0))

"""`graph.config.check_against_eager()`: steps beside eager."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn
from gflow.lowering import registry

Tensor = torch.Tensor


#: a number in a file: nothing that a signature can hold
SCALE = Path(tempfile.mkdtemp()) / "scale.txt"
SCALE.write_text("1")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.register_buffer("seen", torch.zeros(3, 4).t()[::2])

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        hidden = torch.tanh(self.norm(self.first(x)))  # the line of tanh
        return self.last(hidden * float(SCALE.read_text()))  # the line of the scale


class Training(nn.Graph):
    def __init__(self, model: Any, optimizer: Any = None) -> None:
        super().__init__()
        self.model, self.bias = model, torch.zeros(())
        self.add_optimizer(
            optimizer or torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
        )

    def build(self, x: Tensor, y: Tensor) -> Any:
        out = self.model(x)
        self.bias = self.bias + 1.0
        loss = nn.functional.mse_loss(out + self.bias, y)
        loss.backward()
        return {"loss": loss, "out": [out]}


def batches(count: int, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [
        (torch.randn(8, 32, dtype=dtype).t(), torch.randn(32, 1, dtype=dtype)) for _ in range(count)
    ]


def line(marker: str) -> str:
    from pathlib import Path

    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(i for i, x in enumerate(lines, 1) if x.endswith(f'# {marker}'))}"


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.float32, torch.optim.NAdam), (torch.bfloat16, torch.optim.SGD)]
)
def test_checked_steps_are_the_same(dtype: torch.dtype, kind: Any) -> None:
    """A run with checks leaves the bits that one without leaves, in tensors and in Python."""
    torch.manual_seed(0)
    first = Network().to(dtype)
    left = []
    for every in (None, 1):
        model = copy.deepcopy(first)
        optimizer = kind(model.parameters(), lr=0.01)
        graph = Training(model, optimizer)
        graph.config.check_against_eager(every)
        outs = [graph(*batch) for batch in batches(4, dtype)]
        tensors = torch.utils._pytree.tree_leaves(
            (outs, model.state_dict(), optimizer.state_dict(), graph.bias)
        )
        left.append(tensors)
        assert all(p.grad is None for p in model.parameters())
    for other in left[1:]:
        for a, b in zip(left[0], other, strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.RULES["aten.tanh"]
    monkeypatch.setitem(registry.RULES, "aten.tanh", lambda em, x: right(em, x * 1.01))
    registry._resolved.clear()
    try:
        graph = Training(Network())
        first, second, _ = batches(3)
        graph(*first)
        graph.config.check_against_eager()
        with pytest.raises(flow.EagerMismatch) as caught:
            graph(*second)
    finally:
        registry._resolved.clear()
    text = str(caught.value)
    assert "aten.tanh.default" in text
    assert line("the line of tanh") in text
    assert "'model'" in text


def test_a_value_of_python_is_named() -> None:
    """Also after the first step; the step itself is made, and later ones are not disturbed."""
    graph = Training(Network())
    graph.config.check_against_eager(every=2, on_difference="warn")
    data = batches(5)
    for batch in data[:3]:
        graph(*batch)
    SCALE.write_text("2")
    try:
        graph(*data[3])  # not a checked one
        with pytest.warns(UserWarning, match="no part of the signature") as told:
            graph(*data[4])
    finally:
        SCALE.write_text("1")
    (text,) = {str(w.message) for w in told if "no part of the signature" in str(w.message)}
    assert line("the line of the scale") in text
    assert "2.0) now" in text
    assert "1.0) then" in text


def test_a_wrong_place_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no op parts when each result is kept, it lies in how they are joined."""
    graph = Training(Network())
    data = batches(3)
    graph(*data[0])
    graph(*data[1])
    graph.config.check_against_eager()
    plan = graph._state.latest
    assert plan is not None
    run = plan.compiled.run

    def spoiled(arguments: list[Tensor]) -> Any:
        results = run(arguments)
        results[0].add_(1)
        return results

    object.__setattr__(plan.compiled, "run", spoiled)
    with pytest.raises(
        flow.EagerMismatch, match="no op parts, so it lies in how ops are joined or placed"
    ):
        graph(*data[2])


def test_in_place_updates_of_arguments() -> None:
    class InPlace(nn.Graph):
        def build(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            y[0] = 3.0
            return x @ x.t()

    graph = InPlace()
    graph.config.check_against_eager()
    for _ in range(3):
        x, y = torch.randn(3, 4), torch.arange(4)
        want = (x + 1) @ (x + 1).t()
        assert torch.allclose(graph(x, y), want)
        assert y.tolist() == [3, 1, 2, 3]


def test_what_cannot_be_compared() -> None:
    class Dropped(nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x)  # the line of dropout

    graph = Dropped()
    graph.config.check_against_eager()
    with pytest.raises(flow.GraphError, match="random numbers") as caught:
        graph(torch.ones(3))
    assert line("the line of dropout") in str(caught.value)
    parts = Training(Network())
    parts.config.set_gradient_accumulation_steps(2)
    parts.config.check_against_eager()
    data = batches(2)
    with pytest.raises(flow.GraphError, match="set_gradient_accumulation_steps"):
        parts(*data[0])
    with pytest.raises(flow.GraphError, match="takes an int, 1 or more"):
        graph.config.check_against_eager(0)
    with pytest.raises(flow.GraphError, match="'raise' or 'warn'"):
        graph.config.check_against_eager(on_difference="ignore")


@pytest.fixture
def scale() -> Any:
    yield SCALE
    SCALE.write_text("1")


def _of(build: Any, optimizers: Any = (), setup: Any = lambda graph: None) -> nn.Graph:
    class Checked(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            for optimizer in optimizers:
                self.add_optimizer(optimizer)
            setup(self)
            self.config.check_against_eager()

        def build(self, *args: Any) -> Any:
            return build(float(SCALE.read_text()), *args)

    return Checked()


RESULTS = {
    "a number": (lambda s, x: (x * 2, s), "leaf 1 of the result"),
    "the structure": (lambda s, x: (x * 2,) if s == 1 else [x * 2], "what build() returns"),
    "a key": (lambda s, x: {str(s): x * 2}, "what build() returns"),
    "0 for NaN": (lambda s, x: (x * 0) / (s - 1), "result 0"),
    "a small element": (lambda s, x: torch.cat([x * 1e6, x.new_full((1,), s)]), "result 0"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_differences_of_results(name: str, scale: Path) -> None:
    build, text = RESULTS[name]
    graph, x = _of(build), torch.ones(3)
    graph(x)
    scale.write_text("2")
    with pytest.raises(flow.EagerMismatch, match=text.replace("(", r"\(").replace(")", r"\)")):
        graph(x)


def test_an_error_of_eager_is_a_difference(scale: Path) -> None:
    def build(s: float, x: Tensor) -> Tensor:
        if s == 2:
            raise ValueError("not this one")
        loss = model(x).sum()
        loss.backward()
        return loss

    model = nn.Linear(2, 2)
    graph, x = _of(build, [torch.optim.SGD(model.parameters(), lr=0.1)]), torch.ones(1, 2)
    graph(x)
    scale.write_text("2")
    before = model.weight.clone()
    with pytest.raises(flow.EagerMismatch, match="raises ValueError: not this one"):
        graph(x)
    torch.testing.assert_close(model.weight, before - 0.1)  # the step was made


def test_a_check_leaves_what_it_reaches_as_it_was(scale: Path) -> None:
    """Modules and tensors that the step was not traced with, gradients, and Python objects."""
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    log: list[int] = []
    held = {"calls": 0}

    def build(s: float, x: Tensor) -> Tensor:
        log.append(1)
        held["calls"] += 1
        loss = (first if s == 1 else second)(x).square().sum() + other(x).sum()
        loss.backward()
        return loss

    other = nn.Linear(2, 2)  # of no optimizer
    parameters = [*first.parameters(), *second.parameters()]
    graph = _of(build, [torch.optim.SGD(parameters, lr=0.1, momentum=0.9)])
    with pytest.warns(UserWarning, match="build"):
        graph(torch.randn(4, 2))
    scale.write_text("2")
    second.load_state_dict(first.state_dict())
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(flow.EagerMismatch):
        graph(torch.randn(4, 2))
    for name, value in second.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in (*parameters, *other.parameters()))
    assert log == [1]
    assert held == {"calls": 1}


class Counting(torch.optim.Optimizer):
    """An optimizer whose state is in attributes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.calls, self.rates = 0, [0.1]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.calls += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.rates[0] / self.calls)


def _scaled(graph: nn.Graph) -> None:
    graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))


STEPS: dict[str, Any] = {
    "attributes": (Counting, lambda graph: None),
    "a scaler": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), _scaled),
    "keys of groups": (
        lambda p: torch.optim.SGD(
            [{"params": list(p), "clip_grad_max_norm": 0.5, "lr_scale": 0.5}], lr=0.1
        ),
        lambda graph: None,
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_steps_with_more_than_an_optimizer(kind: str, scale: Path) -> None:
    """They are the same with checks as without, and a value of Python that changes is found."""
    make, setup = STEPS[kind]
    left = []
    for every in (None, 1):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)

        def build(s: float, x: Tensor, model: nn.Module = model) -> Any:
            loss = model(x).square().mean() * s
            loss.backward()
            return loss, model.weight

        graph = _of(build, [make(model.parameters())], setup)
        graph.config.check_against_eager(every)
        for step in range(4):  # a gradient of the third overflows
            x = torch.full((3, 4), 1e25 if kind == "a scaler" and step == 2 else 1.0)
            graph(x)
        left.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *left))
    scale.write_text("2")
    with pytest.raises(flow.EagerMismatch):
        graph(torch.full((3, 4), 1.0))


def test_attention_without_dropout_is_compared() -> None:
    def build(s: float, q: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q) * s

    q = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(_of(build)(q), build(1.0, q))


def test_a_gradient_that_is_rounding_alone() -> None:
    """That of a bias before a batch norm, from which AdamW makes steps as large as the learning rate."""
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*parts, nn.Linear(16 * 32 * 32, 10))

    def build(s: float, x: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), torch.arange(4))
        loss.backward()
        return loss

    graph = _of(build, [torch.optim.AdamW(model.parameters(), lr=0.001)])
    for _ in range(2):
        graph(torch.randn(4, 3, 32, 32))

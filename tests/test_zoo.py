"""Models of every kind train in a graph as they train eagerly: outputs, parameters, buffers and
optimizer state of five steps on fresh inputs. The quick tests run in float32; the slow ones add the
rest of the models, float64 and inference; the sweep adds float64 for the rest and for inference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from zoo import CASES, Case
from zoo.harness import Infer, Train, batches, check, make
from zoo.randomness import RANDOM

import gflow as flow
from gflow import nn

slow = pytest.mark.slow


def _params() -> list[Any]:
    found = []
    for number, case in enumerate(CASES):
        for i, dtype in enumerate(case.dtypes):
            for train in (True, False) if case.infer else (True,):
                quick = train and not case.slow and i == 0
                name = f"{case.name}-{str(dtype)[6:]}-{'train' if train else 'infer'}"
                marks = [] if quick else [slow]
                wide = dtype == torch.float64 and number % 6 != 0
                if i > 0 and (case.slow or not train or wide):
                    marks = [pytest.mark.sweep]
                found.append(pytest.param(case, dtype, train, id=name, marks=marks))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "dtype", "train"), _params())
def test_like_eager(case: Case, dtype: torch.dtype, train: bool) -> None:
    verdict, _ = check(case, dtype, train, steps=5 if train else 2)
    assert not verdict.wrong


def _case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


# -- randomness: distributions, and the seed


@pytest.mark.parametrize("name", RANDOM)
def test_random_models(name: str) -> None:
    make_model, shape = RANDOM[name]
    case = Case(name, make_model, lambda: (torch.randn(shape),))

    def steps() -> torch.Tensor:
        torch.manual_seed(5)
        model = make_model()
        graph = Train(case, model, torch.optim.SGD(model.parameters(), lr=0.0))
        return torch.stack([graph(x)[1].double() for x in [torch.randn(shape)] * 30])

    values = steps()
    assert torch.equal(values, steps())
    assert values.flatten(1).unique(dim=0).shape[0] > 1, "every step draws the same"
    model = make_model()
    with torch.no_grad():
        expected = torch.stack([model(torch.randn(shape)).double() for _ in range(30)])
    rows = values[..., 0].numel()
    assert float(values.mean()) == pytest.approx(
        float(expected.mean()), abs=7 * float(expected.std()) / rows**0.5
    )
    assert float(values.std()) == pytest.approx(
        float(expected.std()), rel=0.5 if rows < 100 else 0.02
    )


def test_dropout_gradients_use_the_mask_of_the_forward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Dropout(0.5))
    before = model[0].weight.detach().clone()

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 1.0))

        def build(self, x: Any) -> Any:
            out = self.model(x)
            out.sum().backward()
            return out

    out = Step()(torch.ones(1, 50))
    moved = (before - model[0].weight.detach())[:, 0]
    torch.testing.assert_close(moved, torch.where(out[0] != 0, 2.0, 0.0))


# -- several graphs over one model, shapes that change, modes


def test_train_and_eval_graphs_share_a_model() -> None:
    case = _case("GPT")
    model, other = make(case), make(case)
    optimizer, reference = (torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, other))
    train, infer = Train(case, model, optimizer), Infer(case, model)
    for i, batch in enumerate(batches(case, 4)):
        ids = batch[0][:, : 12 - 2 * (i % 2)]
        model.train(), other.train()
        loss, _ = train(ids)
        expected, _ = case.program(other, ids)
        torch.testing.assert_close(loss, expected.detach())
        reference.zero_grad()
        expected.backward()
        reference.step()
        model.eval(), other.eval()
        with torch.no_grad():
            torch.testing.assert_close(
                infer(ids)[0], case.program(other, ids)[0], rtol=1e-4, atol=0
            )


def test_eager_and_graph_steps_alternate() -> None:
    case = _case("ResNet bottleneck")
    model = make(case)
    other = copy.deepcopy(model)
    optimizer, reference = case.optimizer(model.parameters()), case.optimizer(other.parameters())
    graph = Train(case, model, optimizer)

    def eager(m: Any, o: Any, batch: Any) -> None:
        o.zero_grad()
        case.program(m, *batch)[0].backward()
        o.step()

    for i, batch in enumerate(batches(case, 4)):
        eager(other, reference, batch)
        if i % 2:
            graph(*batch)
        else:
            eager(model, optimizer, batch)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_gan_two_losses_two_optimizers() -> None:
    def parts() -> list[Any]:
        torch.manual_seed(0)
        generator = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
        )
        critic = torch.nn.Sequential(
            torch.nn.Linear(3, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 1)
        )
        return [generator, critic]

    def losses(generator: Any, critic: Any, z: Any, x: Any) -> tuple[Any, Any]:
        fake = generator(z)
        one = flow.nn.functional.softplus(-critic(x)).mean()
        one = one + flow.nn.functional.softplus(critic(fake.detach())).mean()
        for p in critic.parameters():
            p.requires_grad_(False)
        two = flow.nn.functional.softplus(-critic(fake)).mean()
        for p in critic.parameters():
            p.requires_grad_(True)
        return one, two

    class Gan(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = parts()
            for part in (self.generator, self.critic):
                self.add_optimizer(torch.optim.Adam(part.parameters(), 1e-2))

        def build(self, z: Any, x: Any) -> Any:
            one, two = losses(self.generator, self.critic, z, x)
            one.backward()
            two.backward()
            return one, two

    graph, (generator, critic) = Gan(), parts()
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (generator, critic)]
    for _ in range(5):
        z, x = torch.randn(8, 4), torch.randn(8, 3)
        got = graph(z, x)
        one, two = losses(generator, critic, z, x)
        for o in optimizers:
            o.zero_grad()
        one.backward()
        two.backward()
        for o in optimizers:
            o.step()
        torch.testing.assert_close(got, (one.detach(), two.detach()))
    for a, b in zip(graph.generator.parameters(), generator.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradient_clipping() -> None:
    case = _case("GPT")

    def clipped(model: torch.nn.Module, x: Any) -> Any:
        loss = case.program(model, x)[0]
        loss.backward()
        return loss, torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    model, other = make(case), make(case)
    optimizer, reference = (torch.optim.SGD(m.parameters(), 0.5) for m in (model, other))

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            return clipped(self.model, x)

    graph = Step()
    for (x,) in batches(case, 4):
        got = graph(x)
        reference.zero_grad()
        expected = clipped(other, x)
        reference.step()
        torch.testing.assert_close(got, tuple(t.detach() for t in expected), rtol=1e-4, atol=1e-5)


def test_accumulated_losses() -> None:
    """Two backward() in one build() add their gradients."""
    model, other = (torch.nn.Linear(3, 1) for _ in range(2))
    other.load_state_dict(model.state_dict())

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))

        def build(self, parts: Any) -> None:
            for part in parts:
                self.model(part).square().mean().backward()

    graph, reference = Step(), torch.optim.SGD(other.parameters(), 0.1)
    for _ in range(3):
        parts = [torch.randn(4, 3) for _ in range(2)]
        graph(parts)
        reference.zero_grad()
        for part in parts:
            other(part).square().mean().backward()
        reference.step()
    torch.testing.assert_close(model.weight, other.weight)


@pytest.mark.filterwarnings("ignore")
def test_ops_that_eager_refuses_are_refused() -> None:
    """Element types that PyTorch's shape rules let through."""
    f, d, i = torch.randn, lambda *s: torch.randn(*s).double(), lambda *s: torch.ones(*s).int()
    functional = torch.nn.functional
    calls: list[tuple[Any, ...]] = [
        (torch.matmul, f(2, 2), d(2)),
        (functional.linear, d(2, 2), f(2, 2), f(2)),
        (functional.nll_loss, f(2, 2), i(2)),
        (functional.binary_cross_entropy, f(2).sigmoid(), d(2).sigmoid()),
        (functional.layer_norm, d(2, 2), (2,), f(2), f(2)),
        (functional.batch_norm, d(2, 2), f(2), f(2), f(2), f(2), True),
        (functional.group_norm, d(2, 2), 1, f(2), f(2)),
        (lambda x: x.softmax(0), i(2)),
    ]

    class Call(nn.Graph):
        def build(self, *args: Any) -> Any:
            return function(*args)

    for function, *args in calls:
        with pytest.raises(RuntimeError):
            function(*args)
        with pytest.raises(flow.GraphTraceError, match=rf"{__file__}:\d+: aten\S+ takes "):
            Call()(*args)

"""`torch.compile(model, backend="gflow")` against eager."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gflow
from gflow.errors import GraphTraceError

torch.manual_seed(0)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def all_compiled(caplog: pytest.LogCaptureFixture) -> Any:
    """No graph runs through PyTorch instead."""
    with caplog.at_level(logging.WARNING, logger="gflow"):
        yield
    assert not [r for r in caplog.records if "torch.compile" in r.message]


def compiled(function: Any, **more: Any) -> Any:
    return torch.compile(function, backend="gflow", **more)


def check_step(
    model: nn.Module, make: Callable[[], Any], steps: int = 2, tol: float = 1e-4
) -> None:
    """Outputs, gradients of inputs and parameters, and buffers over some steps."""
    other = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(steps):
        x = make()
        y = x.clone()
        if x.is_floating_point():
            x.requires_grad_(), y.requires_grad_()
        found, expected = fast(x), other(y)
        torch.testing.assert_close(found, expected, rtol=tol, atol=tol)
        assert found.stride() == expected.stride()
        found.square().mean().backward()
        expected.square().mean().backward()
        if x.is_floating_point():
            torch.testing.assert_close(x.grad, y.grad, rtol=tol, atol=tol)
        for (name, a), b in zip(model.named_parameters(), other.parameters()):
            torch.testing.assert_close(
                a.grad, b.grad, rtol=tol, atol=tol, msg=lambda m, n=name: f"{n}: {m}"
            )
        torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = (
            t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.usefixtures("all_compiled")
def test_convolutions_train() -> None:
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4), nn.GELU())
    check_step(model, lambda: torch.randn(4, 3, 6, 6))


@pytest.mark.usefixtures("all_compiled")
def test_attention_trains() -> None:
    check_step(Attention(), lambda: torch.randint(11, (2, 5)))


@pytest.mark.usefixtures("all_compiled")
def test_channels_last_keeps_its_strides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 1))
    model = model.to(memory_format=torch.channels_last)
    check_step(model, lambda: torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_keeps_the_gaps_of_its_own_memory(dynamic: bool) -> None:
    """As in eager; a part of a larger tensor is returned without the rest of that tensor."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.empty_strided(x.shape, (1, 3 * x.shape[0]))
        made.copy_(x.sin())
        return made, made * 2, x.exp()[:, :2]

    fast = compiled(function, dynamic=dynamic)
    for n in (4, 5, 7):
        x = torch.rand(n, 3, requires_grad=True)
        found, expected = fast(x), function(x)
        torch.testing.assert_close(found, expected)
        assert [y.stride() for y in found[:2]] == [y.stride() for y in expected[:2]]
        gradients = [torch.autograd.grad([y.sum() for y in of], x) for of in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("grad", [True, False])
def test_results_in_other_orders_can_be_updated(grad: bool) -> None:
    """They are no views, which autograd would not let the caller update."""
    function = torch.compile(lambda x: x * 2, backend="gflow")
    x = torch.rand(3, 4).t().requires_grad_(grad)
    y = function(x)
    assert y.stride() == (1, 4)
    assert not y._is_view()
    y.mul_(3)
    torch.testing.assert_close(y, x * 6)
    if grad:
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 6))


@pytest.mark.usefixtures("all_compiled")
def test_inference_after_training_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Dropout(0.5))
    other = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(6, 4)
    fast(x), other(x)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))
    model.eval(), other.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), other(x))
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), other(x))
    model.load_state_dict({k: v + 1 for k, v in other.state_dict().items()})
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(fast(x), other(x))


@pytest.mark.usefixtures("all_compiled")
def test_dropout_follows_the_seed_and_its_own_mask_in_the_backward() -> None:
    fast = compiled(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(3)
    first, second = fast(x), fast(x)
    assert not torch.equal(first, second)
    assert 400 < int((first == 2).sum()) < 600
    torch.manual_seed(3)
    assert torch.equal(fast(x), first)
    second.sum().backward()
    assert torch.equal(x.grad, second.detach())


@pytest.mark.usefixtures("all_compiled")
def test_updates_of_inputs_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[:, 0] = 5
        return x * y

    fast = compiled(function)
    for grad in (False, True):
        scale = torch.ones(2, 3, requires_grad=grad)
        x, y = torch.randn(2, 3), torch.randn(3, 2).t()
        a, b = x.clone(), y.clone()
        found, expected = fast(x * scale if grad else x, y), function(a * scale if grad else a, b)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close((x, y), (a, b))
    version = x._version
    with torch.no_grad():
        fast(x, y)
    assert x._version > version


@pytest.mark.usefixtures("all_compiled")
def test_outputs_that_are_inputs_views_and_plain_values() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        y = x * n
        return {"x": x, "view": x[0], "y": [y, y.t(), y], "n": n, "none": None, "empty": y[:0]}

    x = torch.randn(3, 4)
    found, expected = compiled(function)(x, 2), function(x, 2)
    assert found["x"] is x
    assert found["view"].data_ptr() == x.data_ptr()
    assert (found["n"], found["none"]) == (2, None)
    for key in ("view", "y", "empty"):
        torch.testing.assert_close(found[key], expected[key])
    assert found["y"][1].stride() == expected["y"][1].stride()


@pytest.mark.usefixtures("all_compiled")
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_other_sizes(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softmax(-1))
    other = copy.deepcopy(model)
    fast = compiled(model, dynamic=dynamic)
    for size in (4, 5, 4, 6) if dynamic is None else (4, 5):
        x = torch.randn(size, 4)
        found, expected = fast(x), other(x)
        torch.testing.assert_close(found, expected)
        model.zero_grad(), other.zero_grad()
        found.sum().backward(), expected.sum().backward()
        torch.testing.assert_close(model[0].weight.grad, other[0].weight.grad)


@pytest.mark.usefixtures("all_compiled")
def test_optimizer_and_autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    other = copy.deepcopy(model)
    fast = compiled(model)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, other)]
    for _ in range(4):
        x = torch.randn(16, 4)
        for run, optimizer in zip((fast, other), optimizers):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = fast(x), other(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_graph_breaks_are_torch_compiles() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum() > 0:
            return y + 1
        return y - 1

    fast = compiled(function)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(fast(x), function(x))


def test_what_gflow_cannot_compile_runs_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    with caplog.at_level(logging.WARNING, logger="gflow"):
        found = compiled(function)(torch.ones(3))
    torch.testing.assert_close(found, torch.ones(3).sin())
    assert (
        "is split into several programs, with cond through PyTorch; gflow cannot compile a nested graph"
        in caplog.text
    )


def test_updates_by_indices_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """The checks of calls see the tensors in a list of indices."""

    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = x.index_put((at,), x[0], accumulate=True)
        x[:, at] = 2.0
        return x.masked_fill(x > 1, 0.5)[at]

    args = torch.randn(4, 4), torch.tensor([1, 3])
    with caplog.at_level(logging.WARNING, logger="gflow"):
        torch.testing.assert_close(compiled(function)(*args), function(*args))
    assert "op by op" not in caplog.text


def test_options() -> None:
    from gflow.compiler import CompileOptions

    x = torch.ones(3)
    assert torch.equal(compiled(lambda t: t + 1, options={"threads": 1})(x), x + 1)
    with pytest.raises(Exception, match=r"options as a gflow\.compiler\.CompileOptions"):
        torch.compile(lambda t: t + 2, backend=__import__("gflow.dynamo").dynamo.gflow, options=3)(
            x
        )
    from gflow.dynamo import gflow

    fast = torch.compile(
        lambda t: t + 3, backend=lambda m, a: gflow(m, a, options=CompileOptions())
    )
    assert torch.equal(fast(x), x + 3)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "views",
    [
        lambda y: (y[:, ::2], y[1], y.t()),
        lambda y: (y.detach(), y.detach().unsqueeze(0), y),
        lambda y: (y.detach()[1:], y.t()[3:]),
        lambda y: (y.detach().t().t().chunk(2)[1], *y.detach().unbind(1)),
        lambda y: (y.detach().view(torch.int32), y),
        lambda y: (torch.view_as_real(torch.complex(y, y)).detach(), torch.complex(y, y)),
        lambda y: (lambda z: (z.detach().imag, z.detach().conj(), z))(torch.complex(y, y)),
        lambda y: (lambda z: (z, z.detach()[1:]))(torch.empty_strided((2, 6), (13, 2)).copy_(y)),
    ],
    ids=["views", "detached", "overlap", "parts", "bits", "pairs", "conjugate", "gaps"],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_results_that_share_memory_across_a_graph_break(
    views: Any, transposed: bool, requires_grad: bool
) -> None:
    """An update of one of them in the next graph is seen by the others, whichever of them require a gradient."""

    def function(x: torch.Tensor) -> Any:
        found = views((x + 1).t().reshape(2, 6) if not transposed else x * 2)
        torch._dynamo.graph_break()
        with torch.no_grad():
            found[0].detach().mul_(3)
            found[1].detach().add_(1)
        return found

    x, y = (torch.arange(12.0).requires_grad_(requires_grad) for _ in range(2))
    shaped = [t.view(6, 2).t() if transposed else t.view(3, 4) for t in (x, y)]
    found, expected = torch.compile(function, backend="gflow")(shaped[0]), function(shaped[1])
    torch.testing.assert_close(found, expected)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    if requires_grad and any(t.requires_grad for t in found):
        for results in (found, expected):
            sum(t.abs().sum() for t in results if t.requires_grad).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_offsets_of_as_strided_count_from_the_memory_of_an_argument() -> None:
    """Dynamo guards no storage offset: one program serves arguments that begin elsewhere in their memory."""

    def third(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3,), (1,), 2) * 2

    memory = torch.arange(20.0)
    compiled: Any = torch.compile(third, backend="gflow")
    for x in (memory[:6], memory[5:11], memory[2:8]):
        torch.testing.assert_close(compiled(x), third(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("strides", [(4, 4, 1), (4, 1, 1), (1, 4, 2)])
def test_a_view_of_an_updated_argument_beside_a_gradient(
    strides: tuple[int, ...], dynamic: bool
) -> None:
    """With symbolic sizes AOTAutograd makes the view by the offset of the forward's own result."""

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        parts = x.chunk(2)
        parts[0].mul_(2)
        return w * 2, parts[1]

    compiled = torch.compile(function, backend="gflow", dynamic=dynamic)
    x, y = (torch.arange(8.0).as_strided((2, 1, 4), strides) for _ in range(2))
    w = torch.ones(1, requires_grad=True)
    torch.testing.assert_close(compiled(x, w), function(y, w))
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(x).unfold(0, 3, 1),
        lambda x: torch.tanh(x).as_strided((4, 3), (1, 1)),
        lambda x: torch.tanh(x).unfold(0, 3, 1).expand(2, 4, 3),
    ],
    ids=["unfold", "as_strided", "expand"],
)
def test_gradients_of_a_result_whose_elements_are_one_in_memory(
    function: Any, dynamic: bool
) -> None:
    """AOTAutograd makes gradients of such elements one as well."""
    compiled = torch.compile(function, backend="gflow", dynamic=dynamic)
    found = []
    for run in (function, compiled):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        y = run(x)
        (y * torch.arange(float(y.numel())).reshape(y.shape)).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_an_update_of_overlapping_elements_is_refused_for_every_size() -> None:
    """Also where a size that varies makes them overlap."""

    def update(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    torch._dynamo.reset()
    compiled: Any = torch.compile(update, backend="gflow", dynamic=True)
    apart = torch.zeros(400).as_strided((8, 8), (16, 2))
    torch.testing.assert_close(compiled(apart), torch.ones(8, 8))
    overlapping = torch.zeros(400).as_strided((12, 12), (16, 2))
    with pytest.raises(GraphTraceError, match="one in memory"):
        compiled(overlapping)
    assert not overlapping.any()


@pytest.mark.parametrize("way", ["gflow.compile", "torch.compile"])
def test_the_backward_has_what_arguments_were_before_an_update(way: str) -> None:
    """AOTAutograd keeps such an argument itself, and computes from it again: 1 / x of the new x."""

    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        made = x.__rdiv__(s) + s * x[1:].reciprocal().sum()  # type: ignore[operator]
        x.abs_()
        return made

    seen = []
    compiled = gflow.compile(function) if way == "gflow.compile" else None
    compiled = compiled or torch.compile(function, backend="gflow")
    for call in (function, compiled):
        x, s = torch.tensor([-1.0, 2.0, -4.0]), torch.tensor(3.0, requires_grad=True)
        result = call(x, s)
        (gradient,) = torch.autograd.grad(result.sum(), s)
        seen.append((result.detach(), x, gradient))
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.det,
        lambda x: (x + torch.eye(3)).slogdet()[1],
        lambda x: torch.linalg.slogdet(A=x)[1] * 2,
        lambda x: torch.linalg.solve(x, torch.ones(3)).sum(),
    ],
)
def test_factors_of_transposed_matrices(function: Callable[..., Any]) -> None:
    """PyTorch factors row-major matrices transposed, and its backward asks again which ones are."""
    torch._dynamo.reset()
    matrix = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(3)
    ours, theirs = (matrix.t().detach().requires_grad_() for _ in range(2))
    torch.compile(function, backend="gflow")(ours).backward()
    function(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("how", [compiled, gflow.compile])
def test_a_graph_inside_of_a_compiled_function(how: Any) -> None:
    """It runs its own program: TorchDynamo traced into gflow before, an internal error."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    other = copy.deepcopy(model)

    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

    step, optimizer = Step(), torch.optim.SGD(other.parameters(), 0.1)

    def eager(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = other(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = how(lambda x: step(x + 1) * 2)
    for n in range(3):
        x = torch.full((2, 3), n / 4)
        torch.testing.assert_close(call(x), eager(x + 1) * 2)
    torch.testing.assert_close(model.state_dict(), other.state_dict())

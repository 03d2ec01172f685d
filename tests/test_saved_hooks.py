"""Hooks of saved tensors and other contexts of PyTorch around calls: what acts on eager's tensors gets them, or is
refused."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import gflow


def doubled():
    return saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2)


def compiled(how, function):
    torch._dynamo.reset()
    return gflow.compile(function) if how == "compile" else torch.compile(function, backend="gflow")


def gradients(function, x, weight):
    x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))
    function(x, weight).sum().backward()
    return x.grad, weight.grad


def body(x, weight):
    return torch.tanh(torch.sin(x) @ weight) * torch.exp(x) * x


def within(function, context):
    def call(*args):
        with context():
            return function(*args)

    return call


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_hooks_that_change_values_see_what_eager_saves(how, caplog):
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    function = compiled(how, body)
    with caplog.at_level(logging.WARNING, "gflow"):
        for context in (contextlib.nullcontext, doubled, contextlib.nullcontext, doubled):
            expected = gradients(within(body, context), x, weight)
            found = gradients(within(function, context), x, weight)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert sum("runs in eager mode within" in r.message for r in caplog.records) == 1


def _named_as_pytorch(t):
    return t * 2


_named_as_pytorch.__module__ = "torch.autograd.graph"


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (_named_as_pytorch, lambda t: t),
        (functools.wraps(save_on_cpu().pack_hook)(_named_as_pytorch), lambda t: t),
        (functools.partial(torch.mul, 2), lambda t: t),
        (torch.nn.functional.relu, torch.Tensor.clone),
        (save_on_cpu().pack_hook, lambda packed: packed[1] * 2),
    ],
    ids=["module", "wraps", "partial", "function of PyTorch", "one of two"],
)
def test_hooks_are_known_by_their_code(pack, unpack):
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    context = functools.partial(saved_tensors_hooks, pack, unpack)
    expected = gradients(within(body, context), x, weight)
    found = gradients(within(compiled("compile", body), context), x, weight)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_hooks_of_pytorch_run_beside_programs(how, caplog):
    """Also where the first call is made in them: a trace calls none."""
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    expected = gradients(body, x, weight)
    for first in ("checkpoint", "save_on_cpu"):
        function = compiled(how, body)
        around = {
            "checkpoint": lambda *args, f=function: checkpoint(f, *args, use_reentrant=False),
            "save_on_cpu": within(function, save_on_cpu),
        }
        for name in (first, *around):
            found = gradients(around[name], x, weight)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not [r for r in caplog.records if r.name == "gflow"]


def test_graphs_refuse_hooks_around_a_step_that_may_change_values():
    class Step(gflow.nn.Graph):
        def __init__(self, model, inside):
            super().__init__()
            self.model = model
            self.inside = inside
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x):
            with doubled() if self.inside else contextlib.nullcontext():
                loss = torch.tanh(self.model(x)).square().sum()
            loss.backward()
            return loss

    torch.manual_seed(0)
    x, model = torch.randn(3, 4), torch.nn.Linear(4, 4)
    step = Step(model, False)
    step(x)
    with doubled(), pytest.raises(gflow.GraphTraceError, match=r"saved_tensors_hooks"):
        step(x)
    with save_on_cpu():
        step(x)

    other = copy.deepcopy(model)
    Step(other, True)(x)
    with doubled():
        loss = torch.tanh(model(x)).square().sum()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.testing.assert_close(other.state_dict(), model.state_dict())


def dual(function):
    def tangent(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x * 2))).tangent

    return tangent


TRANSFORMS = {
    "vmap": torch.vmap,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x * 2,))[1],
    "dual": dual,
    "dual without gradients": lambda f: torch.no_grad()(dual(f)),
}


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_transforms_around_a_call_act_on_what_eager_calls(how, caplog):
    """A program's results have no tangents: they would be lost without a word."""
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    called = compiled(how, lambda x: body(x, weight))
    # TorchDynamo leaves a function to eager mode for good once it has met it in a transform of torch.func
    kinds = TRANSFORMS if how == "compile" else ["dual", "dual without gradients"]
    for transform in map(TRANSFORMS.__getitem__, kinds):
        torch.testing.assert_close(called(x), body(x, weight))
        expected = transform(lambda x: body(x, weight))(x)
        with caplog.at_level(logging.WARNING, "gflow"):
            torch.testing.assert_close(transform(called)(x), expected)
    told = 1 if how == "compile" else 2  # for each graph
    assert sum("within transforms" in r.message for r in caplog.records) == told


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_a_batched_backward(how):
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    many = torch.randn(5, 3, 4)
    found, expected = (
        torch.autograd.grad(f(x, weight), x, many, is_grads_batched=True)[0]
        for f in (compiled(how, body), body)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_fake_tensors(how):
    """A call of fake tensors gives fake ones; outside of their mode it is an error. Both ended the process."""
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    called = compiled(how, lambda x: body(x, weight))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x)
        assert called(fake).shape == (3, 4)
    torch.testing.assert_close(called(x), body(x, weight))
    with pytest.raises(ValueError, match="has no memory"):
        called(fake)


def test_a_graph_within_a_transform_is_refused():
    class Graph(gflow.nn.Graph):
        def build(self, x):
            return torch.sin(x) * x

    graph, x = Graph(), torch.randn(3, 4)
    for _ in range(2):
        for transform in TRANSFORMS.values():
            with pytest.raises(gflow.GraphInputError, match="called within a transform"):
                transform(graph)(x)
        with forward_ad.dual_level():  # of others
            torch.testing.assert_close(graph(x), torch.sin(x) * x)


def _not_a_number_within(x, weight):
    masked = torch.where(
        x > 0, x, 0
    )  # the gradient of sqrt at 0 is inf, times 0 NaN, and left out here
    return masked.sqrt() * 0 + x @ weight


def test_anomalies(caplog):
    x, weight = torch.randn(3, 3), torch.randn(3, 3)
    function = gflow.compile(_not_a_number_within)
    with caplog.at_level(logging.WARNING, "gflow"):
        for check in (False, True, False):
            with torch.autograd.detect_anomaly(check_nan=check):
                for run in (_not_a_number_within, function):
                    raises = pytest.raises(RuntimeError, match="SqrtBackward0")
                    with raises if check else contextlib.nullcontext():
                        gradients(run, x, weight)
    assert sum("detect_anomaly" in r.message for r in caplog.records) == 1


class _Step(gflow.nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).square().sum()
        loss.backward()
        return loss


@pytest.mark.parametrize("warm", [True, False])
def test_graphs_refuse_the_search_for_anomalies(warm):
    model, x = torch.nn.Linear(2, 2), torch.randn(3, 2)
    graph, before = _Step(model), copy.deepcopy(model.state_dict())
    if warm:
        graph(x)
        before = copy.deepcopy(model.state_dict())
    with torch.autograd.detect_anomaly():
        with pytest.raises(gflow.GraphTraceError, match=r"test_saved_hooks.*detect_anomaly"):
            graph(x)
        predict = gflow.nn.Graph.trace(lambda x: model(x))  # without a backward, it changes nothing
        torch.testing.assert_close(predict(x), model(x))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    graph(x)


class _Twice(torch.nn.Module):
    def forward(self, weight):
        return weight * 2


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_parametrized_tensors_that_are_kept_for_several_calls(how):
    model, x = torch.nn.Linear(2, 2), torch.randn(3, 2)
    parametrize.register_parametrization(model, "weight", _Twice())
    function = compiled(how, model)
    for cached in (contextlib.nullcontext, parametrize.cached, contextlib.nullcontext):
        with cached():
            for _ in range(2):
                torch.testing.assert_close(function(x), model(x))
                with torch.no_grad():
                    model.parametrizations.weight.original.add_(1)
    graph = gflow.nn.Graph.trace(lambda x: model(x))
    graph(x)
    with parametrize.cached():
        with pytest.raises(gflow.GraphTraceError, match=r"parametrize\.cached\(\)"):
            graph(x)
        plain = torch.nn.Linear(2, 2)
        torch.testing.assert_close(gflow.nn.Graph.trace(lambda x: plain(x))(x), plain(x))


def test_a_hook_of_a_gradient_that_reads_values():
    """No trace can hold it: the function is split, and each backward calls it."""
    seen = []

    def function(x):
        x = x * 2
        x.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        return x.sin()

    fast, x = gflow.compile(function), torch.randn(3, requires_grad=True)
    for _ in range(2):
        wanted = torch.autograd.grad(function(x).sum(), x)
        found = torch.autograd.grad(fast(x).sum(), x)
        torch.testing.assert_close(found, wanted)
    assert len(seen) == 4
    assert seen[::2] == pytest.approx(seen[1::2])

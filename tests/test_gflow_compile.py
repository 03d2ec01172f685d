"""`gflow.compile` of modules and functions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

import gflow as flow

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        y = self.layers(x) * scale
        return {"y": y, "rest": [self.drop(y), None]}


def test_a_module_stays_what_it_was() -> None:
    model = Net()
    fast = flow.compile(model)
    assert isinstance(fast, Net)
    assert type(fast).__name__ == "Net"
    assert repr(fast) == repr(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert next(iter(fast.parameters())) is model.layers[0].weight
    fast.eval()
    assert not model.layers.training
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, scale=2.0)["y"], model(x, scale=2.0)["y"])
        assert fast(x)["rest"][1] is None
        model.layers[0] = nn.Linear(4, 8)
        torch.testing.assert_close(fast(x)["y"], model(x)["y"])
        fast.double()
        torch.testing.assert_close(fast(x.double())["y"], model(x.double())["y"])


def test_training_a_module() -> None:
    model = Net()
    other = copy.deepcopy(model)
    fast = flow.compile(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (fast, other)]
    for _ in range(3):
        x = torch.randn(6, 4)
        for net, optimizer in zip((fast, other), optimizers):
            optimizer.zero_grad()
            net(x)["y"].square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)
    fast.eval(), other.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(x)["y"], other(x)["y"], rtol=1e-4, atol=1e-5)


def test_copies_and_pickles() -> None:
    fast = flow.compile(Net().eval(), threads=1)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):  # noqa: S301
            assert other.layers is not fast.layers
            torch.testing.assert_close(other(x)["y"], fast(x)["y"])
            nn.init.zeros_(other.layers[0].weight)
            assert not torch.equal(other(x)["y"], fast(x)["y"])


def test_functions() -> None:
    shift = torch.randn(3, requires_grad=True)

    @flow.compile
    def function(x: torch.Tensor, power: int = 2) -> Any:
        """Its own text."""
        return x**power + shift, power

    assert function.__doc__ == "Its own text."
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(function(x)[0], x**2 + shift)
        shift += 1
        found, power = function(x, power=3)
    torch.testing.assert_close(found, x**3 + shift.detach())
    assert (power, found.requires_grad) == (3, False)
    function(x)[0].sum().backward()
    torch.testing.assert_close(shift.grad, torch.full((3,), 2.0))
    y = x.clone().requires_grad_()
    flow.compile(lambda t: t.exp())(y).sum().backward()
    torch.testing.assert_close(y.grad, y.detach().exp())


model_of_this_file = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))


def test_modes_of_modules_that_a_function_uses() -> None:
    @flow.compile(cache_size=3)
    def function(x: torch.Tensor) -> torch.Tensor:
        return model_of_this_file(x)

    x = torch.ones(64, 3)
    model_of_this_file.train()
    with torch.no_grad():
        torch.manual_seed(1)
        first, second = function(x), function(x)
        assert not torch.equal(first, second)
        torch.manual_seed(1)
        assert torch.equal(function(x), first)
        model_of_this_file.eval()
        torch.testing.assert_close(function(x), model_of_this_file(x))
    function(x).sum().backward()
    assert model_of_this_file[0].weight.grad is not None


def test_inside_a_graph_and_of_itself() -> None:
    model = nn.Linear(2, 2)
    fast = flow.compile(flow.compile(model))

    class Outer(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = fast

        def build(self, x: Any) -> Any:
            return self.model(x) + 1

    x = torch.ones(1, 2)
    torch.testing.assert_close(Outer()(x), (model(x) + 1).detach())


def test_errors() -> None:
    with pytest.raises(flow.GraphError, match="takes a module or a function, got int"):
        flow.compile(3)
    with pytest.raises(flow.GraphError, match="unexpected keyword argument 'backend'"):
        flow.compile(Net(), backend="inductor")
    choose = flow.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        with pytest.raises(flow.GraphTraceError, match=r"torch\.where"):
            choose(x)


def test_part_of_a_graph() -> None:
    """In `build()` of a graph it is a part of its program."""
    doubled, linear = flow.compile(lambda x: x * 2), flow.compile(nn.Linear(3, 3))

    class Outer(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(x) + linear(x)

    x = torch.randn(2, 3)
    torch.testing.assert_close(Outer()(x), x * 2 + linear(x))


def gradients_of(run: Any, tensors: Any, *args: Any) -> tuple[Any, list[torch.Tensor]]:
    """Results, and the gradients of some tensors of the sum of all that requires them."""
    out = run(*args)
    loss = sum(x.square().sum() for x in tree_leaves(out) if torch.is_tensor(x) and x.requires_grad)
    return out, list(torch.autograd.grad(loss, tensors, allow_unused=True))


def assert_same_gradients(target: Any, tensors: Any, *args: Any) -> Any:
    """A compiled target is as the target itself, by two programs."""
    fast = flow.compile(target)
    mine, theirs = (gradients_of(run, tensors, *args) for run in (fast, target))
    torch.testing.assert_close(tree_leaves(mine[0]), tree_leaves(theirs[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1], theirs[1], rtol=1e-4, atol=1e-5)
    if isinstance(target, nn.Module):
        assert not fast._runner._by_dynamo
    return fast


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
        y = nn.functional.relu6(self.norm(self.conv(x)))
        z = self.attention(y.flatten(2).mT) * weight
        return {"z": z, "best": z.argmax(-1), "rest": (None, 3, y.detach(), x)}


def test_gradients_of_a_model() -> None:
    model = Blocks()
    x, weight = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    fast = assert_same_gradients(model, [*model.parameters(), x, weight], x, weight)
    out = fast(x, weight)
    assert not out["best"].requires_grad
    assert not out["rest"][2].requires_grad
    assert out["rest"][:2] == (None, 3)
    model.conv.requires_grad_(False)
    model.eval()
    assert_same_gradients(model, [model.attention.linear1.weight, weight], x.detach(), weight)


def test_backwards_that_come_later() -> None:
    """What they need is kept, by each call for itself, and checked."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    fast = flow.compile(model, cache_size=1)
    model.eval()
    batches = [torch.randn(n, 4) for n in (3, 3, 5, 3, 3, 3, 3)]
    losses = [fast(x).square().sum() for x in batches]
    losses[0].backward(retain_graph=True)
    for loss in losses:
        loss.backward()
    found = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    for x in (batches[0], *batches):
        model(x).square().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])
    model.train()
    x = torch.ones(64, 4, requires_grad=True)
    wide = flow.compile(nn.Dropout(0.5))
    kept = wide(x)
    kept.sum().backward()
    assert torch.equal(x.grad, kept)  # the same mask
    loss = fast(batches[0]).sum()
    with torch.no_grad():
        model[3].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_marked_modules_keep_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 4))

    def kept(fast: Any) -> list[tuple[int, ...]]:
        (pair,) = fast._runner._pairs._state.plans
        results = pair.compiled.program.results[pair.divided.results :]
        return [r.type.shape for r in results if r.alias is None]

    x = torch.randn(3, 4)
    assert kept(assert_same_gradients(model, [*model.parameters()], x)) == [(3, 64)]
    model.to(flow.nn.graph.GraphModule).activation_checkpointing = True
    assert kept(assert_same_gradients(model, [*model.parameters()], x)) == []


def test_what_is_left_to_dynamo() -> None:
    model = nn.Linear(3, 3)

    @flow.compile
    def updates(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return model(x)

    x = torch.zeros(2, 3)
    updates(x).sum().backward()
    assert x[0, 0] == 1
    torch.testing.assert_close(model.weight.grad, torch.full((3, 3), 2.0))


def _item(y: torch.Tensor) -> torch.Tensor:
    return y * int(y.sum().item() > 0)


def _branch(y: torch.Tensor) -> torch.Tensor:
    if y.sum() > 0:
        return y * 2
    return -y


def _mask(y: torch.Tensor) -> torch.Tensor:
    return y[y > 0].exp()


def _nonzero(y: torch.Tensor) -> torch.Tensor:
    rows, columns = (y > 0).nonzero(as_tuple=True)
    return y[rows, columns]


def _bincount(y: torch.Tensor) -> torch.Tensor:
    return y[:1] * torch.bincount((y > 0).long().flatten(), minlength=2)[1]


def _packed(y: torch.Tensor) -> torch.Tensor:
    packed = pack_padded_sequence(y[None].expand(2, -1, -1), torch.tensor([3, 2]), batch_first=True)
    return pad_packed_sequence(packed, batch_first=True)[0].tanh()


def _cond(y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.sum() > 0, lambda z: z.sin() * 2, lambda z: z.cos() - 1, (y,))


def _drawn(y: torch.Tensor) -> torch.Tensor:
    return y + torch.rand(3, generator=torch.Generator().manual_seed(1))


def _sparse(y: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(torch.eye(3).to_sparse(), y)


@pytest.mark.parametrize(
    "part", [_item, _branch, _mask, _nonzero, _bincount, _packed, _cond, _drawn, _sparse]
)
def test_what_no_program_holds_is_split(part: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With and without gradients as in eager mode, for the values of each call, and said once."""
    model = nn.Linear(3, 3)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return part(model(x)).sum(-1)

    fast = flow.compile(whole)
    for x in (torch.randn(3, 3), torch.randn(3, 3)):
        with torch.no_grad():
            torch.testing.assert_close(fast(x), whole(x))
        mine, theirs = (torch.autograd.grad(f(x).sum(), model.weight) for f in (fast, whole))
        torch.testing.assert_close(mine, theirs)
    said = [r.getMessage() for r in caplog.records if "programs, since it" in r.getMessage()]
    assert len(said) == 1
    assert "test_gflow_compile.py:" in said[0]


def test_a_split_calls_what_raises_as_in_eager_mode() -> None:
    """The function's own errors are its own, however often it is called."""
    fast = flow.compile(lambda x, y: (x @ y) * x.sum().item())
    assert fast(torch.ones(2, 2), torch.ones(2, 2)).shape == (2, 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"cannot be multiplied|mismatch"):
            fast(torch.ones(2, 2), torch.ones(3, 3))


@torch._dynamo.config.patch(recompile_limit=1)
def test_results_of_eager_calls_may_be_updated_in_place() -> None:
    """By as many modules as one likes: all of PyTorch's own are one function to TorchDynamo."""
    for slope in (0.1, 0.2):
        eager = torch.nn.LeakyReLU(slope, inplace=True)
        x = torch.arange(-3.0, 3.0, requires_grad=True)
        found = []
        for module in (eager, flow.compile(eager)):
            y = x * 2
            module(y)
            found.append([y, *torch.autograd.grad(y.square().sum(), x)])
        torch.testing.assert_close(*found)
    with pytest.raises(RuntimeError, match="a leaf Variable"):
        flow.compile(eager)(x)


def penalty(run: Any, x: torch.Tensor, weights: Any) -> list[torch.Tensor]:
    """Gradients of a penalty on gradients, as of a GAN's critic."""
    (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    return list(torch.autograd.grad(slope.square().sum() + run(x).mean(), weights))


def test_gradients_of_gradients() -> None:
    """With `create_graph=True`, of arguments with a history as well; statistics are updated once a call."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other = copy.deepcopy(model)
    fast = flow.compile(model)
    x = torch.randn(5, 3)
    weights = [list(m.parameters()) for m in (model, other)]
    found = []
    for run, (first, *rest) in zip((fast, other), weights):
        given = (x * first.sum()).requires_grad_()
        found.append(penalty(run, given, [first, *rest[:1], *rest[3:]]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))
    assert not fast._runner._by_dynamo


def test_what_gradients_of_gradients_cannot_make_again() -> None:
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    result = flow.compile(lambda x: model(x).tanh())(x).sum()
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result, x, create_graph=True)
    drawn = flow.compile(lambda x: nn.functional.dropout(model(x)))(x).sum()
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.autograd.grad(drawn, x, create_graph=True)


class Counting(nn.Module):
    """Keeps Python state of each kind."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.linear, self.calls, self.breaks = nn.Linear(3, 3), 0, breaks
        self.seen: list[int] = []
        self.last: dict[str, int] = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(len(self.seen))
        self.last["calls"] = self.last["calls"] + 2
        if self.breaks and x.sum().item() > 1e6:
            return x
        return self.linear(x) * (self.calls + self.last["calls"])


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_python_state_stays_live(breaks: bool, gradients: bool) -> None:
    """Each call changes it once, the first one too, whose trace is given up."""
    model = Counting(breaks)
    other, fast = copy.deepcopy(model), flow.compile(model)
    x = torch.randn(2, 3)
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            torch.testing.assert_close(fast(x), other(x))
            assert (model.calls, model.seen, model.last) == (other.calls, other.seen, other.last)


def test_what_has_run_before_a_refused_piece_is_not_run_again() -> None:
    """A piece that the backend refuses runs as in eager mode, by itself."""

    def step(x: torch.Tensor, y: torch.Tensor, calls: list[int]) -> torch.Tensor:
        x.add_(1)
        calls.append(len(calls))
        torch._dynamo.graph_break()
        y += 1  # whose elements share memory, which programs refuse
        torch._dynamo.graph_break()
        return x * 2

    def given() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        return torch.zeros(3), torch.zeros(12).as_strided((2, 2, 8), (2, 2, 1)), []

    compiled, ours, eager = flow.compile(step), given(), given()
    for n in range(3):
        assert torch.equal(compiled(*ours), step(*eager)), n
        assert torch.equal(ours[0], eager[0])
        assert torch.equal(ours[1], eager[1])
        assert ours[2] == eager[2] == [*range(n + 1)]


def test_shapes_of_arguments_that_a_refused_piece_changes() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.squeeze_((1, 3))
        y += 1
        return x + y.sum()

    def given() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(5, 1, 5, 1), torch.zeros(12).as_strided((2, 2, 8), (2, 2, 1))

    ours, eager = given(), given()
    assert torch.equal(flow.compile(step)(*ours), step(*eager))
    assert ours[0].shape == eager[0].shape == (5, 5)
    assert torch.equal(ours[1], eager[1])


def test_a_function_that_differs_where_it_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """As attention masks of LongT5: made in eager mode only, and needed by what follows."""

    def function(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.full((x.shape[-1],), 2.0)
        return x * mask.reshape(-1)  # type: ignore[union-attr]

    compiled = flow.compile(function)
    for n in range(3):
        x = torch.full((4,), float(n), requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((4,), 2.0))
    assert "'NoneType' object has no attribute 'reshape'" in caplog.text
    with pytest.raises(AttributeError, match="no attribute 'reshape'"):
        flow.compile(function, fullgraph=True)(torch.ones(4))


def test_errors_of_a_function_are_those_of_eager_mode() -> None:
    seen = []

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        if len(x) > 3:
            raise KeyError("too long")
        return x @ y

    compiled = flow.compile(function)
    with pytest.raises(RuntimeError, match=r"size mismatch|inconsistent tensor size"):
        compiled(torch.ones(2), torch.ones(3))
    with pytest.raises(KeyError, match="too long"):
        compiled(torch.ones(4), torch.ones(4))
    assert compiled(torch.ones(3), torch.ones(3)).item() == 3
    assert seen == [(2,), (4,), (3,)]


@pytest.mark.parametrize("way", ["compile", "gradients", "torch.compile"])
def test_the_default_device_is_that_of_new_tensors_only(way: str) -> None:
    """Sizes, seeds and constants of programs are on the CPU, whatever `torch.set_default_device` says."""
    w = torch.randn(8, requires_grad=way != "compile")

    def function(x: torch.Tensor) -> torch.Tensor:
        return w * x.shape[0] + F.dropout(x).sum() * 0

    fast = (
        torch.compile(function, backend="gflow")
        if way == "torch.compile"
        else flow.compile(function)
    )
    for n in (3, 5, 6):
        x = torch.randn(n, 8)
        with torch.device("meta"):
            torch.testing.assert_close(fast(x), w * n)

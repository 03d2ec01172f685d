"""Values that a program refuses: the error, its place, and what is left after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gflow
from gflow import nn
from gflow.compiler import CompileOptions
from gflow.compiler.emit.triton.accesses import accesses
from gflow.execution.executor import programs_for
from gflow.runtime.cuda.fake import dry_run
from gflow.runtime.failures import where
from gflow.saved.run import main as gflow_run


class Net(torch.nn.Module):
    """Tokens to classes, with running statistics that a step updates."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(self.embed(x).mean(1)))


class Train(nn.Graph):
    def __init__(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


def adam(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 7, (6, 5)), torch.randint(0, 3, (6,))


def spoiled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    other = tensor.clone()
    other.view(-1)[-1] = value
    return other


def state(*owners: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves([o.state_dict() for o in owners])
    return [t.clone() for t in leaves if isinstance(t, torch.Tensor)]


_SWITCHES = {
    "as it is": lambda config: None,
    "amp": lambda config: config.enable_amp(True, dtype=torch.bfloat16),
    "multi-tensor": lambda config: config.enable_multi_tensor_update(True),
    "plain memory": lambda config: config.enable_compress_memory(False),
    **{
        order: lambda config, order=order: config.enable_straighten_algorithm(order)
        for order in ("MemoryFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu")
    },
}


@pytest.mark.parametrize("switch", _SWITCHES)
def test_a_call_that_is_refused_changes_nothing(switch: str) -> None:
    net = Net()
    optimizer = adam(net)
    graph = Train(net, optimizer)
    _SWITCHES[switch](graph.config)
    x, y = batch()
    bad = [(spoiled(x, 7), y), (spoiled(x, -1), y), (x, spoiled(y, 3)), (x, spoiled(y, -7))]
    for calls in range(3):  # before the first step, after it, and later
        owners = (net, optimizer) if calls else (net,)
        before = state(*owners)
        for given in bad:
            with pytest.raises(IndexError, match=rf"{__file__}:\d+ \(forward"):
                graph(*given)
        assert all(torch.equal(a, b) for a, b in zip(before, state(*owners), strict=True))
        # an optimizer that has not made a step may have its state already: zeros
        assert calls or not any(t.any() for t in state(optimizer))
        graph(x, y)


def test_the_message_has_value_bound_line_and_module() -> None:
    net = Net()
    graph = Train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = batch()
    graph(x, y)
    with pytest.raises(IndexError) as caught:
        graph(spoiled(x, 9), y)
    first, place = str(caught.value).split("\n")
    assert "index 9 is out of bounds" in first
    assert "size 7" in first
    assert place.endswith("(forward of net.embed)")
    with pytest.raises(IndexError, match="Target 5 is out of bounds: there are 3 classes"):
        graph(x, spoiled(y, 5))


def test_an_update_that_the_refused_value_is_computed_from() -> None:
    class Count(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.holder = torch.nn.Module()
            self.holder.register_buffer("place", torch.zeros(1, dtype=torch.int64))

        def build(self, x):
            self.holder.place.add_(1)
            return x[self.holder.place]

    graph = Count()
    x = torch.arange(3.0)
    assert [graph(x).item() for _ in range(2)] == [1.0, 2.0]
    for _ in range(2):
        with pytest.raises(
            IndexError, match="index 3 is out of bounds for dimension 0 with size 3"
        ):
            graph(x)
        assert graph.holder.place.item() == 2


def _unread(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.index_select(0, i)
    return x + 1


def _stated(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    torch._assert_async((i < 3).all(), "the index is too large")
    return x + 1


def _twice(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i] + x[i].square()


def _one_hot(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.one_hot(i, 3) + x[0, 0]


def _division(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return (i + 1) // (i - 3)


@pytest.mark.parametrize("function", [_unread, _stated, _twice, _one_hot, _division])
def test_functions(function: Any) -> None:
    x, good, bad = torch.randn(3, 4), torch.tensor([0, 2]), torch.tensor([0, 3])
    compiled = gflow.compile(function)
    torch.testing.assert_close(compiled(x, good), function(x, good))
    with pytest.raises((IndexError, RuntimeError)) as want:
        function(x, bad)
    with pytest.raises(
        type(want.value), match=f"{__file__}:{function.__code__.co_firstlineno + 1}"
    ):
        compiled(x, bad)
    torch.testing.assert_close(compiled(x, good), function(x, good))


def test_a_value_is_checked_once() -> None:
    class Look(nn.Graph):
        def build(self, x, i):
            w = x.detach().requires_grad_()
            y = w.index_select(0, i).sum() + w.gather(0, i[:, None]).sum() + w[i].square().sum()
            return torch.autograd.grad(y, w)

    graph = Look()
    graph(torch.randn(3, 4), torch.tensor([0, 2]))
    # as a row, as an element, and from either end; gradients check nothing anew
    assert graph.ir(generic=True).count('"gflow.check"') == 1


def test_positions_that_a_program_makes_itself_are_not_checked() -> None:
    class Positions(nn.Graph):
        def build(self, w):
            return F.embedding(torch.arange(3), w) + w[torch.arange(3).flip(0)]

    graph = Positions()
    graph(torch.randn(3, 4))
    assert '"gflow.check"' not in graph.ir(generic=True)


@pytest.mark.parametrize("backend", ["compile", "torch.compile"])
def test_modules_with_gradients(backend: str) -> None:
    net = Net().eval()
    compiled = gflow.compile(net) if backend == "compile" else torch.compile(net, backend="gflow")
    x, y = batch()
    F.cross_entropy(compiled(x), y).backward()
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        compiled(spoiled(x, 7))


def test_sizes_that_vary() -> None:
    class Look(nn.Graph):
        def build(self, x, i):
            return x[i]

    graph = Look()
    x = torch.randn(6, 2)
    gflow.dynamic_dim(x, 0, min=2, max=64)
    for n in (6, 4, 9):
        rows = x if n == 6 else torch.randn(n, 2)
        assert torch.equal(graph(rows, torch.tensor([-n, n - 1])), rows[[-n, n - 1]])
        for bad in (n, -n - 1):
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
                graph(rows, torch.tensor([0, bad]))


def test_pytorch_s_own_errors_have_a_place() -> None:
    compiled = gflow.compile(lambda x, i: x.scatter(0, i, 1.0))
    with pytest.raises(
        RuntimeError, match=rf"index 5 is out of bounds[^\n]*\n  at {__file__}:\d+ \(forward\)$"
    ):
        compiled(torch.randn(3, 4), torch.tensor([[5]]))
    with pytest.raises(torch.linalg.LinAlgError, match=f"  at {__file__}:"):
        gflow.compile(lambda x: torch.linalg.inv(x) @ x)(torch.zeros(3, 3))


def test_artifacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    net = Net().eval()

    class Infer(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def build(self, x):
            return self.net(x)

    graph, (x, _) = Infer(), batch()
    graph(x)
    gflow.save(graph, tmp_path / "saved")
    loaded = gflow.load(tmp_path / "saved")
    torch.testing.assert_close(loaded(x), graph(x))
    with pytest.raises(
        IndexError, match=rf"index 8 [^\n]*\n  at {__file__}:\d+ \(forward of net.embed\)"
    ):
        loaded(spoiled(x, 8))
    np.save(tmp_path / "x.npy", spoiled(x, 8).numpy())
    options = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]
    assert gflow_run([str(tmp_path / "saved"), *options]) == 1
    assert f"  at {__file__}:" in capsys.readouterr().err


@pytest.mark.parametrize("wait", ["0", "1"])
def test_on_a_device_the_next_call_says_which(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    monkeypatch.setenv("GFLOW_CUDA_SYNC", wait)
    net = Net()
    graph = Train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    graph.config.compile_options = CompileOptions(target="cuda:90")
    x, y = batch()
    for _ in range(3):
        graph(x, y)
    if wait == "1":
        with pytest.raises(
            IndexError, match=rf"Target 9 is out of bounds[^\n]*\n  at {__file__}:\d+ \(forward\)$"
        ):
            graph(x, spoiled(y, 9))
    else:
        graph(x, spoiled(y, 9))
        with pytest.raises(
            IndexError, match=r"Target 9 (.|\n)*in run 4 of this program on the device"
        ):
            graph(x, y)
    graph(x, y)


def test_a_dry_run_for_a_device_knows_checks() -> None:
    net = Net()
    graph = Train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    graph(*batch())
    plan: Any = graph._state.latest
    (program,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    assert [c.error for c in program.checks] == ["IndexError"] * 2
    assert dry_run(program, accesses(program)).runs == 3


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ('check loc("forward:body.embed"("/me/net.py":12:0))', "  at /me/net.py:12 (forward of body.embed)"),
        ('aten loc("backward:"("net.py":3:0))', "  at net.py:3 (backward)"),
        ('aten loc(fused[unknown, "optimizer:"("net.py":3:0)])', "  at net.py:3 (optimizer)"),
        ('take loc("net.mlir":3:7)', "  at net.mlir:3"),
        ("take loc(unknown)", ""),
    ],
)  # fmt: skip
def test_places_in_labels(label: str, line: str) -> None:
    assert where(label) == line


def test_one_hot_takes_int64_only() -> None:
    class Classes(nn.Graph):
        def build(self, i: torch.Tensor) -> torch.Tensor:
            return F.one_hot(i, 3)

    classes = torch.tensor([0, 2])
    assert torch.equal(Classes()(classes), F.one_hot(classes, 3))
    with pytest.raises(
        gflow.GraphTraceError, match=r"dtype int64, got int32; convert them with \.long"
    ):
        Classes()(classes.int())

"""Tracers and modes of others around compiled functions and graphs: they see all calls, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import gflow as flow
from gflow.errors import GraphInputError


def _function(x: Tensor) -> Tensor:
    return x.sin() * 2


def _divided(x: Tensor) -> Tensor:
    return x[x > 0].sum() + x  # run in pieces


class Sine(flow.nn.Graph):
    def build(self, x: Tensor) -> Tensor:
        return _function(x)


class Around(torch.nn.Module):
    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + 1


Recorder = Callable[[Callable[..., Any], Tensor], Callable[..., Any]]
RECORDERS: dict[str, Recorder] = {
    "jit.trace": lambda f, x: torch.jit.trace(lambda y: f(y) + 1, (x,), check_trace=False),
    "make_fx": lambda f, x: make_fx(lambda y: f(y) + 1)(x),
    "make_fx, fake": lambda f, x: make_fx(lambda y: f(y) + 1, tracing_mode="fake")(x),
    "export": lambda f, x: torch.export.export(Around(f), (x,), strict=False).module(),
}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("recorder", RECORDERS)
def test_functions_are_recorded_op_by_op(recorder: str, warm: bool) -> None:
    fast, x, y = flow.compile(_function), torch.randn(5), torch.randn(5)
    if warm:
        fast(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = RECORDERS[recorder](fast, x)
    torch.testing.assert_close(recorded(y), _function(y) + 1)
    torch.testing.assert_close(fast(y), _function(y))


def test_a_function_in_pieces_is_recorded() -> None:
    fast, x, y = flow.compile(_divided), torch.randn(6), torch.randn(6)
    fast(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = torch.jit.trace(fast, (x,), check_trace=False)
    torch.testing.assert_close(recorded(y), _divided(y))


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("recorder", RECORDERS)
def test_graphs_are_errors(recorder: str, warm: bool) -> None:
    graph, x = Sine(), torch.randn(5)
    if warm:
        graph(x)
    with pytest.raises(GraphInputError, match=r"test_recorded.py.*a graph is called within"):
        RECORDERS[recorder](graph, x)
    torch.testing.assert_close(graph(x), _function(x))


class Twice(TorchDispatchMode):
    """A mode of a user: sines are twice as large."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.sin.default else found


@pytest.mark.parametrize("warm", [True, False])
def test_dispatch_modes(warm: bool) -> None:
    fast, graph, x = flow.compile(_function), Sine(), torch.randn(5)
    if warm:
        fast(x), graph(x)
    twice = 2 * _function(x)
    with Twice():
        torch.testing.assert_close(fast(x), twice)
        with pytest.raises(GraphInputError, match="called within Twice"):
            graph(x)
    torch.testing.assert_close(fast(x), _function(x))
    torch.testing.assert_close(graph(x), _function(x))


class Times(TorchFunctionMode):
    """A mode of a user: sines are `factor` times as large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * self.factor if func is torch.Tensor.sin else found


def test_function_modes() -> None:
    fast, mode = flow.compile(_function), Times(2.0)
    x = torch.randn(5, requires_grad=True)
    for factor in (None, 2.0, 3.0, 2.0):  # one mode, whose attribute changes
        mode.factor = factor or 0.0
        with mode if factor else torch.device("cpu"):
            found, wanted = fast(x), _function(x)
        torch.testing.assert_close(found, wanted)
        gradients = (torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted))
        torch.testing.assert_close(*gradients)


def test_function_modes_around_graphs_are_errors(tmp_path: Path) -> None:
    graph, x = Sine(), torch.randn(5)
    with torch.device("cpu"):  # a default device, which is a function mode too
        torch.testing.assert_close(graph(x), _function(x))
    flow.save(graph, tmp_path / "sine")
    loaded = flow.load(tmp_path / "sine")
    with Times(3.0):
        with pytest.raises(GraphInputError, match=r"test_recorded.py.*called within Times"):
            graph(x)
        with pytest.raises(ValueError, match="called within Times"):
            loaded(x)
    torch.testing.assert_close(graph(x), _function(x))


def test_operations_are_counted() -> None:
    fast = flow.compile(torch.nn.Linear(8, 4))
    fast(torch.randn(2, 8))
    with FlopCounterMode(display=False) as counter:
        fast(torch.randn(2, 8))
    assert counter.get_total_flops() == 2 * 2 * 8 * 4


def test_fake_tensors() -> None:
    graph, x = Sine(), torch.randn(5)
    with FakeTensorMode() as mode, pytest.raises(GraphInputError, match="FakeTensorMode"):
        graph(mode.from_tensor(x))


def test_loaded_graphs_are_errors(tmp_path: Path) -> None:
    graph, x = Sine(), torch.randn(5)
    graph(x)
    flow.save(graph, tmp_path / "sine")
    loaded = flow.load(tmp_path / "sine")
    with pytest.raises(ValueError, match=r"called within torch\.jit\.trace"):
        torch.jit.trace(lambda y: loaded(y) + 1, (x,))
    torch.testing.assert_close(loaded(x), _function(x))

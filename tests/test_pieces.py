"""Graphs of TorchDynamo that no one program holds: programs, with PyTorch's ops between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import cond, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.utils.checkpoint import checkpoint

import gflow as flow

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).relu() * 2
    z = cond(y.sum() > x.sum(), lambda a: a.exp() + a.cos(), lambda a: a.sin() - 3, (y,))
    return z.tanh() * y + z


def _while(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).tanh() * 0.5
    start = torch.zeros((), dtype=torch.int64)
    _, z = while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, (a * 1.1).sin()), (start, y))
    return z.exp() * 2 + y


def _scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).tanh() * 2
    last, all_of_them = scan(lambda c, v: ((c * 0.5 + v).tanh(), (c + v).exp()), torch.zeros(6), y)
    return all_of_them.sin() * 2 + last


def _map(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).tanh() * 2
    return map_over(lambda v: v.exp() * 2 + 1, y).sum(0) * 3 - 1


def run(function: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    out = function(x, w)
    (gradient,) = torch.autograd.grad(out.sum(), w)
    return out.detach(), gradient


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "gflow")


@pytest.mark.parametrize("function", [_cond, _scan, _map])
def test_control_flow_runs_between_programs(
    function: Function, caplog: pytest.LogCaptureFixture
) -> None:
    """Forward and backward; loops and branches run through PyTorch, what they call is compiled."""
    fast = torch.compile(function, backend="gflow")
    w = torch.randn(6, 6, requires_grad=True)
    for x in (torch.randn(4, 6), torch.randn(4, 6) - 2, torch.randn(4, 6) + 2):
        torch.testing.assert_close(run(fast, x, w), run(function, x, w), rtol=1e-4, atol=1e-5)
    assert "several programs, with" in said(caplog)
    assert "op by op" not in said(caplog)


def test_loops(caplog: pytest.LogCaptureFixture) -> None:
    fast = torch.compile(_while, backend="gflow")
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    torch.testing.assert_close(fast(x, w), _while(x, w), rtol=1e-4, atol=1e-5)
    assert "is split into several programs, with while_loop through PyTorch" in said(caplog)


def test_updates_stay_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """An input that is read, updated and read again, with an op that programs don't hold between."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        before = (x.sin() * 2).exp()
        x.mul_(2).add_(1)
        chosen = cond(before.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))
        x.add_(chosen.cos())
        return before + x.sin() * chosen

    x, w = torch.randn(4, 6), torch.randn(6, 6)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(
        torch.compile(function, backend="gflow")(mine, w), function(theirs, w)
    )
    torch.testing.assert_close(mine, theirs)
    assert "several programs" in said(caplog)


@pytest.mark.parametrize("preserve", [True, False])
def test_checkpointed_dropout_is_compiled(preserve: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The forward keeps the mask, whatever else is recomputed: the gradient is of what was drawn."""
    linear = torch.nn.Linear(64, 64)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(linear(x).tanh(), 0.5)

    @torch.compile(backend="gflow")
    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve) * 1.5

    x = torch.randn(8, 64)
    for _ in range(2):
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), linear.bias)
        drawn = out != 0
        assert 0.3 < drawn.float().mean() < 0.7
        slope = 1 - linear(x).tanh().square()
        torch.testing.assert_close(gradient, (drawn * slope * 3).sum(0), rtol=1e-4, atol=1e-5)
    assert not said(caplog)


@pytest.mark.parametrize(
    "kind",
    ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"],
)
def test_hooks_that_come_later(kind: str) -> None:
    """Of modules in a function that runs in pieces: TorchDynamo takes it that there come none, if it isn't told."""

    def doubled(module: Any, *parts: Any) -> Any:
        part = parts[-1] if kind in ("forward_hook", "full_backward_pre_hook") else parts[0]
        return part * 2 if isinstance(part, torch.Tensor) else tuple(p * 2 for p in part)

    def tripled(module: Any, *parts: Any) -> Any:
        again = doubled(module, *parts)
        return again * 1.5 if isinstance(again, torch.Tensor) else tuple(p * 1.5 for p in again)

    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 6), torch.randn(4, 6, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x).tanh() * (x.sum().item() + 1)  # asks for a value

    compiled = flow.compile(function)
    for hook in (None, doubled, tripled):
        handle = getattr(layer, f"register_{kind}")(hook) if hook is not None else None
        found = []
        for run in (compiled, function):
            y = run(x)
            found.append((y, *torch.autograd.grad(y.sum(), (x, layer.weight))))
        torch.testing.assert_close(*found, msg=str(hook))
        if handle is not None:
            handle.remove()


def test_methods_and_hooks_of_all_modules_that_change() -> None:
    """TorchDynamo looks neither at the methods of classes nor at hooks of all modules."""

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Plain:
        def shift(self) -> float:
            return 1.0

    scaled, plain, calls = Scaled(), Plain(), []

    def function(x: torch.Tensor) -> torch.Tensor:
        return scaled(x) * (x.sum().item() + 1) + plain.shift()

    def hook(module: Any, inputs: Any, result: Any) -> Any:
        calls.append(module)
        return result * 5 if module is scaled else None

    handles: list[Any] = []
    compiled, x = flow.compile(function), torch.ones(3)
    for change in (
        lambda: None,
        lambda: setattr(Scaled, "forward", lambda self, x: x * 3),
        lambda: setattr(Plain, "shift", lambda self: 4.0),
        lambda: handles.append(torch.nn.modules.module.register_module_forward_hook(hook)),
        lambda: handles[0].remove(),
    ):
        change()
        torch.testing.assert_close(compiled(x), function(x))
    assert len(calls) == 2

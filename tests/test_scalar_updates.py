"""Updates of 0-d tensors through TorchDynamo, which takes those of float64 for Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gflow

UPDATES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "zero_": lambda x: x.zero_(),
    "sin_": lambda x: x.sin_(),
    "copy_": lambda x: x.copy_(torch.tensor(3.0)),
    "out": lambda x: torch.add(x, 1, out=x),
    "setitem": lambda x: x.__setitem__((), 4.0),
    "view": lambda x: x.view(1).mul_(5),
    "twice": lambda x: x.add_(1).mul_(2),
    "iadd": lambda x: x.__iadd__(2),
}


def _backend(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="gflow")


@pytest.mark.parametrize("compiled", [gflow.compile, _backend], ids=["gflow.compile", "backend"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_0d_tensors_stay(name: str, grad: bool, compiled: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        UPDATES[name](x)
        z.copy_(x)
        return y * 2 + x

    torch._dynamo.reset()
    run = compiled(function)
    for _ in range(2):
        x, y = torch.rand((), dtype=torch.float64), torch.rand((), requires_grad=grad)
        theirs, z, other = x.clone(), torch.zeros(3), torch.zeros(3)
        expected, found = function(theirs, y, z), run(x, y, other)
        torch.testing.assert_close(x, theirs)
        torch.testing.assert_close(other, z)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("compiled", [gflow.compile, _backend], ids=["gflow.compile", "backend"])
def test_beside_python_numbers(compiled: Any) -> None:
    """An error that says what to do, once the number changes from call to call; the update is never dropped."""

    def function(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
        x.add_(1)
        return y * scale

    torch._dynamo.reset()
    run = compiled(function)
    problem = ""
    for scale in (0.5, 1.5, 2.5, 3.5):
        x, y = torch.rand((), dtype=torch.float64), torch.rand(4)
        wanted = x + 1
        try:
            found = run(x, y, scale)
        except Exception as error:
            problem = str(error)
            break
        torch.testing.assert_close(x, wanted)
        torch.testing.assert_close(found, y * scale)
    assert not problem or "changes a 0-d float64 tensor in place" in problem

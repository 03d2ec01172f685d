"""Conditions on values that raise: `assert`, `if …: raise …` and functions of PyTorch, as eager has them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow as flow

#: bodies of functions of x, with whether [1, -2, 3] fails; in a file of their own, since pytest rewrites `assert`
BODIES = {
    "bare": ("assert x.min() > 0", True),
    "message": ("assert (x > 0).all(), 'must be positive'", True),
    "variable": ("text = 'a text'\n    assert (x > 0).all(), text", True),
    "computed": ("assert (x > 0).all(), f'of shape {x.shape}'", True),
    "negated": ("assert not (x < 0).any(), 'negative'", True),
    "several": ("assert (x < 9).all() and (x > 0).all(), 'range'", True),
    "chained": ("assert 0 < x.min() < 9, 'range'", True),
    "number": ("assert x.sum(), 'zero'", False),
    "finite": ("assert torch.isfinite(x).all()", False),
    "function": ("torch._assert((x > 0).all(), 'positive')", True),
    "async": ("torch._assert_async((x > 0).all(), 'positive')", True),
    "all": ("torch._check_tensor_all(x > 0, lambda: 'all positive')", True),
    "all, with": ("torch._check_tensor_all_with(ValueError, x > 0, lambda: 'all')", True),
    "raise": ("if (x < 0).any():\n        raise ValueError('negative')", True),
    "raise unless": ("if not (x > 0).all():\n        raise RuntimeError(f'in {x.shape}')", True),
    "raise or": ("if (x < 0).any() or (x > 9).any():\n        raise IndexError", True),
    "distribution": (
        "return torch.distributions.Normal(x, x, validate_args=True).log_prob(x)",
        True,
    ),
}
#: choices by value: each branch is a program of its own
CHOICES = {
    "if": "if (x < 0).any():\n        return x * 2",
    "if, with more": "if (x < 0).any():\n        x = x + 1\n        raise ValueError('negative')",
    "other error": "if (x < 0).any():\n        raise KeyError('negative')",
    "or": "assert (x > 0).all() or (x < -9).all()",
}


def load(path: Path, body: str) -> Callable[[Tensor], Tensor]:
    path = path / "stated.py"
    path.write_text(f"import torch\n\ndef function(x):\n    {body}\n    return x + 1\n")
    spec = importlib.util.spec_from_file_location("stated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Any = module.function
    return found


def graph(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    class Given(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            x.mul_(1.5)
            return function(x)

    return Given()


@pytest.mark.parametrize("name", BODIES)
def test_as_eager(name: str, tmp_path: Path) -> None:
    body, fails = BODIES[name]
    function = load(tmp_path, body)
    call, good = graph(function), torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(call(good.clone()), function(good * 1.5))
    bad = torch.tensor([1.0, -2.0, 3.0])
    if not fails:
        torch.testing.assert_close(call(bad.clone()), function(bad * 1.5))
        return
    with pytest.raises(Exception) as wanted:
        function(bad * 1.5)
    given = bad.clone()
    with pytest.raises(wanted.type, match=r"stated\.py:[45]|distributions") as found:
        call(given)
    if name not in ("bare", "computed", "raise unless", "raise or", "distribution"):
        assert str(found.value).splitlines()[0] == str(wanted.value)
    assert torch.equal(given, bad), "updated before it was checked"
    torch.testing.assert_close(call(good.clone()), function(good * 1.5))


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str, tmp_path: Path) -> None:
    function = load(tmp_path, CHOICES[name])
    call = graph(function)
    for values in ((1.0, 2.0, 3.0), (1.0, -2.0, 3.0), (1.0, 2.0, 3.0), (-7.0, -8.0, -9.0)):
        given = torch.tensor(values)
        try:
            wanted = function(given * 1.5)
        except Exception as error:
            with pytest.raises(type(error)):
                call(given.clone())
        else:
            torch.testing.assert_close(call(given.clone()), wanted)


def test_assertions_without_a_message_under_torch_compile() -> None:
    """AOTAutograd drops them."""

    def function(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all())
        return x * 2

    torch._dynamo.reset()
    compiled, good, bad = torch.compile(function, backend="gflow"), torch.ones(2), -torch.ones(2)
    torch.testing.assert_close(compiled(good), good * 2)
    with pytest.raises(RuntimeError, match="nonzero value, but got zero"):
        compiled(bad)

"""Modules whose `forward` assigns tensors: afterwards they hold what eager leaves, or it is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow


class Holder(nn.Module):
    """Plain tensors, buffers, containers; `how` is what forward does."""

    def __init__(self, how: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = torch.zeros(2, 3), torch.ones(2, 3)
        self.register_buffer("buffer", torch.ones(2, 3))
        self.register_buffer("later", None)
        self.columns = torch.ones(3, 2).t()
        self.dict = {"k": torch.zeros(2, 3)}
        self.list = [torch.zeros(2, 3)]
        self.pair = (torch.zeros(2, 3), torch.zeros(2, 3))
        self.none = None
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def rebound(m: Any, x: Tensor) -> Tensor:
    m.a = m.a * 0.5 + x
    m.buffer = m.buffer + m.a
    m.columns = m.columns + x
    m.dict["k"] = m.dict["k"] - x
    m.list[0] = m.list[0] * x
    return m.a + m.buffer


def swapped(m: Any, x: Tensor) -> Tensor:
    m.a, m.b = m.b + x, m.a - x
    return m.a * m.b


def given(m: Any, x: Tensor) -> Tensor:
    m.a = x
    return m.a * 2


def longer(m: Any, x: Tensor) -> Tensor:
    m.a = torch.cat([m.a, x])
    return m.a.sum(0)


def longer_buffer(m: Any, x: Tensor) -> Tensor:
    m.buffer = torch.cat([m.buffer, x])
    return m.buffer.sum(0)


def wider(m: Any, x: Tensor) -> Tensor:
    m.a = (m.a + x).double()
    return x + 1


def moved(m: Any, x: Tensor) -> Tensor:
    m.a = m.b
    m.b = x * 1
    return m.a + 1


def new_pair(m: Any, x: Tensor) -> Tensor:
    m.pair = (m.pair[0] + x, m.pair[1])
    return m.pair[0] + 1


def lazily(m: Any, x: Tensor) -> Tensor:
    m.later = x * 1 if m.later is None else m.later + x
    return m.later + 1


def shown(m: Any, x: Tensor) -> Tensor:
    m.none = x * 2
    return x + 1


def graph(module: nn.Module) -> Callable[[Tensor], Tensor]:
    class Given(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.m = module

        def build(self, x: Tensor) -> Tensor:
            return self.m(x)

    return Given()


FRONTENDS = {"graph": graph, "compile": flow.compile}


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize(
    "how", [rebound, swapped, given, longer, longer_buffer, wider, lazily, shown]
)
def test_as_eager(how: Callable[[Any, Tensor], Tensor], frontend: str) -> None:
    mine, other = Holder(how), Holder(how)
    call = FRONTENDS[frontend](mine)
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(call(x), other(x))
    for name in ("a", "b", "buffer", "columns", "dict", "list", "later", "none"):
        torch.testing.assert_close(getattr(mine, name), getattr(other, name))


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (moved, r"keeps the old one as \w+\.a"),
        (new_pair, r"gives \w+\.pair a new tuple"),
    ],
)
def test_refused(how: Callable[[Any, Tensor], Tensor], message: str, frontend: str) -> None:
    """And nothing of the trace is left behind."""
    module = Holder(how)
    held = {**vars(module), **module._buffers}
    if frontend == "compile":  # which splits the call there
        other, x = Holder(how), torch.randn(2, 3)
        torch.testing.assert_close(FRONTENDS[frontend](module)(x), other(x))
        return
    with pytest.raises(flow.GraphTraceError, match=rf"test_rebinding\.py:\d+: .*{message}"):
        FRONTENDS[frontend](module)(torch.randn(2, 3))
    now = {**vars(module), **module._buffers}
    assert all(now[k] is held[k] for k in ("b", "buffer", "later", "pair", "none"))
    torch.testing.assert_close(Holder(how)(torch.ones(2, 3)), module(torch.ones(2, 3)))

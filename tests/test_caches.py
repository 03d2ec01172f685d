"""Objects that hold tensors as arguments of `gflow.compile` and `torch.compile`: caches that grow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gflow


class Cache:
    """Keys and values of each layer, as transformers has them."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []

    def update(self, layer: int, key: Tensor) -> Tensor:
        if layer == len(self.keys):
            self.keys.append(key)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], 1)
        return self.keys[layer]


class Registered(Cache):
    """One that pytrees know."""


def _rebuild(keys: Any, _: Any) -> Registered:
    made = Registered()
    made.keys = list(keys)
    return made


pytree.register_pytree_node(Registered, lambda c: (c.keys, None), _rebuild)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        for i, layer in enumerate(self.layers):
            keys = cache.update(i, layer(x))
            x = x + (x @ keys.transpose(1, 2)).softmax(-1) @ keys
        return x, cache


@pytest.fixture
def programs() -> Iterator[list[str]]:
    found: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("gflow")
    handler.emit = lambda r: found.append(r.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    torch._dynamo.reset()
    yield found
    log.removeHandler(handler)
    log.setLevel(level)
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", [Cache, Registered])
@pytest.mark.parametrize(
    "compile", [gflow.compile, lambda m: torch.compile(m, backend="gflow", dynamic=True)]
)
def test_a_cache_that_grows(
    kind: type[Cache], compile: Callable[..., Any], programs: list[str]
) -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    compiled = compile(model)
    with torch.no_grad():
        for prompt in (5, 7):
            mine, theirs = kind(), kind()
            x = torch.randn(1, prompt, 8)
            for step in range(6):
                (a, out), (b, _) = compiled(x, mine), model(x, theirs)
                torch.testing.assert_close(a, b)
                assert out is mine
                for p, q in zip(mine.keys, theirs.keys, strict=True):
                    torch.testing.assert_close(p, q)
                x = torch.randn(1, 1, 8) if step != 3 else torch.randn(1, 3, 8)
    made = [m for m in programs if "is compiled for" in m]
    assert len(made) <= 4, made  # prompts, single tokens, and three tokens at once for a cache
    assert not any("op by op" in m for m in programs)

"""Tensors whose elements are not what lies in their memory, and tensor classes that compute in their own way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import gflow as flow
from gflow import nn


class _Calls(nn.Graph):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _update(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


class _AddsToProducts(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 100 if func is torch.Tensor.mul else result


def _negative() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag


def _others() -> dict[str, torch.Tensor]:
    return {
        "negative view": _negative(),
        "zeros": torch._efficientzerotensor(2),
        "_AddsToProducts": torch.ones(2).as_subclass(_AddsToProducts),
        "TwoTensor": TwoTensor(torch.ones(2), torch.zeros(2)),
    }


@pytest.mark.parametrize("kind", _others())
def test_a_graph_refuses_what_memory_does_not_tell(kind: str) -> None:
    graph, plain = _Calls(_double), torch.ones(8).as_strided((2,), _others()[kind].stride())
    graph(plain)  # a program for what looks alike is there
    with pytest.raises(flow.GraphTraceError, match=kind):
        graph(_others()[kind])
    torch.testing.assert_close(graph(plain), plain * 2)


def test_a_graph_refuses_negative_buffers_and_constants() -> None:
    module = torch.nn.Module()
    module.register_buffer("b", _negative())
    captured = _negative()
    with pytest.raises(flow.GraphTraceError, match="negative view"):
        _Calls(lambda x: x + module.b)(torch.ones(2))
    with pytest.raises(flow.GraphTraceError, match="negative view"):
        _Calls(lambda x: x + captured)(torch.ones(2))


@pytest.mark.parametrize("through", ["gflow.compile", "torch.compile"])
def test_compiled_functions_take_negative_views(through: str) -> None:
    compiled: Any = (
        flow.compile(_update)
        if through == "gflow.compile"
        else torch.compile(_update, backend="gflow")
    )
    plain, want = torch.zeros(4)[::2], torch.zeros(4)[::2]
    torch.testing.assert_close(compiled(plain), _update(want))
    given, expected = _negative(), _negative()
    torch.testing.assert_close(compiled(given), _update(expected))
    torch.testing.assert_close(given, expected)


def test_compile_runs_tensor_classes_by_their_own_rules() -> None:
    given = torch.ones(2).as_subclass(_AddsToProducts)
    with torch.no_grad():
        got = flow.compile(lambda x: x.mul(2))(given)
    torch.testing.assert_close(torch.Tensor(got), torch.full((2,), 102.0))

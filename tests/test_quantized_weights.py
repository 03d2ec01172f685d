"""`config.freeze(weights="int8" | "int4")`: products with weights of few bits, and what is said of their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflow as flow
from gflow.errors import GraphError


class Infer(flow.nn.Graph):
    def __init__(self, module: nn.Module, weights: str | None) -> None:
        super().__init__()
        self.module = module
        self.config.freeze(weights=weights)

    def build(self, x: Tensor) -> Any:
        return self.module(x)


def rounded(w: Tensor, weights: str) -> Tensor:
    """What stands for a weight [N, K]."""
    if weights == "int8":
        scale = w.abs().amax(1, keepdim=True) / 127
        return torch.where(scale == 0, w, (w / scale).round().clamp(-127, 127) * scale)
    parts = w.view(w.shape[0], -1, 32)
    high, low = parts.amax(2, True), parts.amin(2, True)
    scale = torch.where(high >= -low, high, low) / -8
    whole = (parts / scale).round().clamp(-8, 7) * scale
    return torch.where(scale == 0, parts, whole).view_as(w)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(96, 131), nn.Tanh(), nn.Linear(131, 64), nn.Linear(64, 70)
    ).eval()


def by_hand(net: nn.Sequential, x: Tensor, weights: str) -> Tensor:
    with torch.no_grad():
        x = torch.tanh(F.linear(x, rounded(net[0].weight, weights), net[0].bias))
        x = net[2](x)  # 131 is no multiple of 32
        return F.linear(x, rounded(net[3].weight, weights), net[3].bias)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_results_are_those_of_rounded_weights(weights: str) -> None:
    net = network()
    with torch.no_grad():
        net[0].weight[3] = 0  # a row, and a group, without a scale
        net[0].weight[5, 32:64] = 0
        net[0].weight[7, :32] = -net[0].weight[7, :32].abs()
    graph = Infer(net, weights)
    for rows in (1, 2, 3, 9, 1):  # 1, then a range
        x = torch.randn(rows, 96)
        torch.testing.assert_close(graph(x), by_hand(net, x, weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_errors_are_told(weights: str) -> None:
    net = network()
    graph = Infer(net, weights)
    graph(torch.randn(1, 96))
    told = graph.explain().frozen
    assert told is not None
    bits = {"int8": 8, "int4": 4}[weights]
    assert [w.name for w in told.quantized] == ["module.0.weight", "module.3.weight"]
    for found, layer in zip(told.quantized, (net[0], net[3])):
        w = layer.weight.detach()
        want = ((w - rounded(w, weights)).norm() / w.norm()).item()
        assert found.bits == bits
        assert found.error == pytest.approx(want, rel=1e-4)
        n, k = -(-w.shape[0] // 64) * 64, w.shape[1]  # whole strips
        scales = 4 * n if bits == 8 else 4 * n * k // 32
        assert found.saved == 4 * w.numel() - n * k * bits // 8 - scales
    assert told.unquantized == ("module.2.weight: its K of 131 is no multiple of 32",)
    assert "no multiple of 32" in str(told)
    assert "module.0.weight" in str(told)


def test_a_change_is_rounded_anew() -> None:
    net = network()
    graph, x = Infer(net, "int8"), torch.randn(2, 96)
    graph(x)
    with torch.no_grad():
        net[0].weight.mul_(-2)
    torch.testing.assert_close(graph(x), by_hand(net, x, "int8"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_that_are_no_numbers_show(weights: str, bad: float) -> None:
    net = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        net.weight[5, 40] = bad
    out = Infer(net, weights)(torch.ones(1, 64))
    assert not out[0, 5].isfinite()
    assert out[0, 4].isfinite()


class Mixed(nn.Module):
    """Weights of kinds that keep their type, and one that is a product of two."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(128, 64), nn.Conv1d(64, 64, 3, padding=1)
        self.a, self.b = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.randn(8, 96))
        self.tiny = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(self.table(x).mT).mT.flatten(0, 1)
        return self.tiny((h @ (self.a @ self.b))[:, :32])


def test_reasons() -> None:
    torch.manual_seed(0)
    module = Mixed().eval()
    graph, x = Infer(module, "int8"), torch.randint(128, (2, 5))
    with torch.no_grad():
        torch.testing.assert_close(graph(x), module(x), rtol=0.2, atol=0.2)
    told = graph.explain().frozen
    assert told is not None
    assert [w.name for w in told.quantized] == ["module.a, module.b"]
    assert sorted(told.unquantized) == [
        "module.conv.weight: a convolution",
        "module.table.weight: looked up, not multiplied",
        "module.tiny.weight: small",
    ]


def test_refused() -> None:
    net = nn.Linear(64, 64)
    with pytest.raises(GraphError, match=r"weights='int8' or 'int4', or None; got 'int3'"):
        Infer(net, "int3")
    graph = Infer(net, "int8")
    graph.config.enable_amp(dtype=torch.bfloat16)
    with pytest.raises(GraphError, match="mixed precision"):
        graph(torch.randn(2, 64))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_saved(weights: str, tmp_path: Path) -> None:
    net, x = network(), torch.randn(1, 96)
    graph = Infer(net, weights)
    want = graph(x)
    flow.save(graph, tmp_path / "graph")
    for native in (True, False):
        torch.testing.assert_close(flow.load(tmp_path / "graph", native=native)(x), want)
    flow.save(graph, tmp_path / "whole", frozen=False)
    torch.testing.assert_close(
        flow.load(tmp_path / "whole")(x), net(x).detach(), rtol=1e-4, atol=1e-5
    )

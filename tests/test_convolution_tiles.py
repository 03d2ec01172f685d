"""Convolutions of gflow's own kernels beside float64: what follows runs on their tiles, windows are gathered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflow as flow
from gflow.compiler.kernel.selection.cpu import products
from gflow.compiler.targets.processors import host_level
from gflow.execution import races

#: channels in and out, window, stride, padding, dilation, groups; windows of 32, 64 and 256 channels are gathered
CASES: list[tuple[int, int, int, int, int, int, int]] = [
    (32, 47, 3, 1, 1, 1, 1), (64, 24, 3, 2, 1, 1, 1), (32, 16, 5, 1, 4, 2, 1), (64, 40, 1, 2, 0, 1, 1),
    (256, 20, 3, 1, 1, 1, 1), (33, 16, 3, 1, 1, 1, 1), (48, 70, 1, 1, 0, 1, 1), (32, 32, 3, 1, 1, 1, 4),
    (37, 37, 3, 1, 1, 1, 37), (96, 96, 5, 2, 2, 1, 96), (24, 24, 3, 1, 2, 2, 24), (80, 80, 3, 1, 3, 1, 80),
]  # fmt: skip


class Convolutions(nn.Module):
    """Each case with batch norm, a residual and ReLU6 behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        for c, o, k, s, p, d, g in CASES:
            norm = nn.BatchNorm2d(o)
            norm.running_mean.normal_()  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            self.parts.append(nn.Sequential(nn.Conv2d(c, o, k, s, p, d, g), norm))

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        found = []
        for part, x in zip(self.parts, inputs):
            y = part(x)
            found.append(F.relu6(y + y.flip(0) + 1))
            found.append(F.relu(part(x + 1)))
        return found


class Infer(flow.nn.Graph):
    def __init__(self, module: nn.Module, frozen: bool) -> None:
        super().__init__()
        self.module = module
        self.config.freeze(frozen)

    def build(self, *inputs: Tensor) -> list[Tensor]:
        return self.module(*inputs)


@pytest.mark.skipif(not host_level(), reason="no products of our own on this processor")
@pytest.mark.parametrize("frozen", [False, True])
def test_beside_float64(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "own_is_faster", lambda *_: True)
    monkeypatch.setattr(races.Races, "measure", lambda *_: {"panels": 1.0, "blas": 2.0})
    monkeypatch.setattr(races, "measured_here", lambda *_: None)
    torch.manual_seed(0)
    module = Convolutions().eval().requires_grad_(False)
    inputs = [torch.randn(2, c, 13, 15) for c, *_ in CASES]
    graph = Infer(module, frozen)
    results, eager = graph(*inputs), module(*inputs)
    exact = copy.deepcopy(module).double()(*(x.double() for x in inputs))
    for found, other, wanted in zip(results, eager, exact):
        error, eagers = ((x - wanted).abs().max().item() for x in (found, other))
        assert error <= 4 * eagers + 1e-6
    text = graph.ir("planned", generic=True)
    kinds = ("packed",) if frozen else ("patches", "direct")
    assert sum(text.count(f'kind = "{kind}"') for kind in kinds) > 8
    steps = str(graph.profile(*inputs))
    assert frozen or "depthwise_tiles" in steps
    assert "pack_patches" in steps, "33 channels, and groups"


def test_looks_at_frozen_parameters_of_all_widths() -> None:
    """A few elements of each tensor are looked at wherever they lie, also where they are not aligned."""
    from gflow.runtime.steps.watched import _looks

    raw = torch.zeros(4 * 100 + 1, dtype=torch.uint8)
    odd = torch.frombuffer(raw.numpy(), dtype=torch.float32, offset=1, count=100)
    tensors = [
        torch.zeros(3, 5),
        torch.zeros(7, dtype=torch.float64),
        torch.zeros(()),
        torch.zeros(9, 4).t(),
    ]
    tensors += [torch.zeros(6, 8)[:, ::2], torch.zeros(5, dtype=torch.bool), odd]
    looks = _looks(tensors)
    assert all(look.same() for look in looks)
    for t in tensors:
        flat = t.view(-1) if t.is_contiguous() else t
        flat[(0,) * flat.dim()] = 1
        assert not all(look.same() for look in looks)
        flat[(0,) * flat.dim()] = 0
        assert all(look.same() for look in looks)

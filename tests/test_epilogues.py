"""Contractions with an epilogue, against PyTorch: pieces, scratch, results in place, odd layouts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tolerance import of_graph
from torch import Tensor, nn
from torch.nn import functional as F

import gflow as flow
from gflow.compiler.kernel.selection.cpu import rows
from gflow.compiler.kernel.selection.cpu.convolutions import patches
from gflow.compiler.targets.processors import ANY


@pytest.fixture(params=["as is", "small pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice that large sizes make, for small ones, too."""
    if request.param == "small pieces":
        small = replace(ANY, large=0, piece=700, gathered=2000)
        monkeypatch.setattr(rows, "ANY", small)
        monkeypatch.setattr(rows, "_SHORT_K", 1 << 30)
        monkeypatch.setattr(patches, "ANY", small)


class Step(flow.nn.Graph):
    def __init__(self, module: nn.Module, optimizer: Any = None) -> None:
        super().__init__()
        self.module = module
        if optimizer is not None:
            self.add_optimizer(optimizer)

    def build(self, *inputs: Tensor) -> Tensor:
        out = self.module(*inputs)
        if self._state.optimizers:
            out.square().mean().backward()
        return out


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.parts, *inputs)


def kinds(graph: Step) -> int:
    return graph.ir("planned", generic=True).count('kind = "contraction"')


def kernels(graph: Step) -> int:
    """Operations of the planned function, those inside of kernels left out."""
    return len(re.findall(r"^    %", graph.ir("planned", generic=True), re.MULTILINE))


INFERENCE = {
    "bias, gelu": (lambda: Call(lambda f, x: F.gelu(f(x)), nn.Linear(24, 40)), [(33, 24)]),
    "rank 3": (lambda: Call(lambda f, x: F.relu(f(x)), nn.Linear(24, 40)), [(3, 11, 24)]),
    "residual": (lambda: Call(lambda f, x: x + f(x), nn.Linear(24, 24)), [(33, 24)]),
    "residual that dies": (
        lambda: Call(lambda f, x: (x * 2).sin() + f((x * 2).sin()), nn.Linear(24, 24)),
        [(3, 11, 24)],
    ),
    "residual recomputed": (
        lambda: Call(lambda f, x: f(x.neg() * 3) + x.neg() * 3 + x, nn.Linear(24, 24)),
        [(33, 24)],
    ),
    "broadcast over rows": (
        lambda: Call(lambda f, x, y: f(x) * y, nn.Linear(24, 40)),
        [(3, 11, 24), (11, 40)],
    ),
    "both results": (
        lambda: Call(lambda f, x: (f(x), torch.tanh(f(x))), nn.Linear(24, 40, bias=False)),
        [(33, 24)],
    ),
    "gate": (
        lambda: Call(
            lambda f, g, x: F.silu(f(x)) * g(x), nn.Linear(24, 40), nn.Linear(24, 40)
        ),
        [(33, 24)],
    ),
    "batched": (lambda: Call(lambda x, y: torch.relu(x @ y + 1)), [(5, 7, 9), (5, 9, 8)]),
    "cast": (lambda: Call(lambda f, x: f(x).double() * 3, nn.Linear(24, 40)), [(33, 24)]),
    "positions": (
        lambda: Call(lambda f, x: f(x) * torch.arange(33.0)[:, None], nn.Linear(24, 40)),
        [(33, 24)],
    ),
    "convolution": (
        lambda: Call(lambda f, x: F.relu(f(x)), nn.Conv2d(6, 10, 3, padding=1)),
        [(3, 6, 9, 7)],
    ),
    "strided, grouped": (
        lambda: Call(lambda f, x: F.hardtanh(f(x)), nn.Conv2d(6, 10, 3, 2, 1, groups=2)),
        [(3, 6, 9, 7)],
    ),
    "1x1, residual": (
        lambda: Call(lambda f, x: x + f(x), nn.Conv2d(6, 6, 1)),
        [(3, 6, 9, 7)],
    ),
    "depthwise": (
        lambda: Call(lambda f, x: F.silu(f(x)) + x, nn.Conv2d(6, 6, 3, padding=1, groups=6)),
        [(3, 6, 9, 7)],
    ),
    "1-d": (lambda: Call(lambda f, x: F.relu(f(x)), nn.Conv1d(6, 10, 3)), [(3, 6, 19)]),
    "3-d": (lambda: Call(lambda f, x: F.relu(f(x)), nn.Conv3d(2, 5, 3)), [(2, 2, 6, 5, 7)]),
    "transposed": (
        lambda: Call(lambda f, x: F.relu(f(x)), nn.ConvTranspose2d(6, 5, 3, 2, 1)),
        [(2, 6, 5, 7)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", INFERENCE)
def test_inference(name: str, dtype: torch.dtype, pieces: None) -> None:
    make, shapes = INFERENCE[name]
    module = make().to(dtype).eval()
    graph = Step(module)
    for _ in range(2):
        inputs = [torch.randn(s).to(dtype) for s in shapes]
        with torch.no_grad():
            got, want = graph(*inputs), module(*inputs)
        assert kinds(graph) >= 1
        torch.testing.assert_close(got, want, **of_graph(graph, 4))


@pytest.mark.parametrize("name", [n for n in INFERENCE if n not in ("both results",)])
def test_training(name: str, pieces: None) -> None:
    make, shapes = INFERENCE[name]
    torch.manual_seed(0)
    ours = make().double()
    theirs = make().double()
    theirs.load_state_dict(ours.state_dict())
    if not list(ours.parameters()):
        pytest.skip("nothing to train")
    graph = Step(ours, torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        inputs = [torch.randn(s).double() for s in shapes]
        got = graph(*inputs)
        optimizer.zero_grad()
        want = theirs(*inputs)
        want.square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(got, want.detach())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("switch", "fewer"),
    [("allow_fuse_add_to_output", "residual"), ("allow_fuse_cast_scale", "cast")],
)
def test_switches(switch: str, fewer: str) -> None:
    make, shapes = INFERENCE[fewer]
    module = make()
    inputs = [torch.randn(s) for s in shapes]
    on, off = Step(module), Step(module)
    getattr(off.config, switch)(False)
    torch.testing.assert_close(on(*inputs), module(*inputs).detach())
    torch.testing.assert_close(off(*inputs), module(*inputs).detach())
    assert kernels(off) > kernels(on)

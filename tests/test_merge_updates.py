"""gflow-merge-updates: all parameter updates in few kernels, with the results that eager has."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow
from gflow.compiler.ir.ssa import aliases, read_body
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir


class Step(flow.nn.Graph):
    def __init__(self, module: nn.Module, optimizer: Any, merged: bool = True) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(optimizer)
        if merged:
            self.config.enable_multi_tensor_update(True)

    def build(self, x: Tensor) -> Tensor:
        loss = self.module(x).square().mean()
        loss.backward()
        return loss


def net() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
    for i in range(12):
        layers += [nn.Linear(128 if i == 0 else 24 + i, 25 + i), nn.Tanh()]
    return nn.Sequential(*layers).double()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
}


def alone(text: str) -> int:
    """Kernels that do nothing but update arguments, and are in no launch with others."""
    context = make_context()
    with context:
        module = ir.Module.parse(text)
    function = module.body.operations[0].operation.opview
    body = read_body(function)
    kept = {v for v, a in zip(body.returned, aliases(function, body)) if a is not None}
    return sum(
        o.name == "fused"
        and 'kind = "pointwise"' in str(o.op)
        and all(r in kept for r in o.results)
        and "gflow.launch" not in o.op.attributes
        for o in body.ops
    )


def launches(text: str) -> dict[str, int]:
    """Updates in each launch."""
    found: dict[str, int] = {}
    for name in re.findall(r"gflow\.launch = (\d+)", text):
        found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_eagers(name: str) -> None:
    ours, theirs = net(), net()
    theirs.load_state_dict(ours.state_dict())
    graph = Step(ours, OPTIMIZERS[name](ours.parameters()))
    optimizer = OPTIMIZERS[name](theirs.parameters())
    for _ in range(4):
        x = torch.randn(5, 3, 6, 6).double()
        got = graph(x)
        optimizer.zero_grad()
        loss = theirs(x).square().mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(got, loss.detach())
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    found = launches(graph.ir(generic=True))
    assert 1 <= len(found) <= 3
    assert sum(found.values()) >= 14
    assert alone(graph.ir(generic=True)) == 0


def test_few_steps_for_many_parameters() -> None:
    """64 parameters: their updates are at most three steps of the program."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(32)))
    graph = Step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    apart = Step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), merged=False)
    for g in (graph, apart):
        g(torch.randn(4, 8))
        g(torch.randn(4, 8))
    found = launches(graph.ir(generic=True))
    assert len(found) <= 3
    assert sum(found.values()) >= 32  # biases are updated where their gradients are summed
    assert alone(graph.ir(generic=True)) == 0
    assert not launches(apart.ir(generic=True))

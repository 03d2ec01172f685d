"""Optimizers of other libraries: as eagerly in float64, or refused with a sentence. `optimizer_harness.py` has all."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from optimizer_harness import LIBRARIES, Case, Model, Train, cases, run, tolerance

import gflow as flow

#: those that choose in Python by their counters, wrap others, or keep state in unusual places
BRANCHY = (
    "schedulefree: AdamWScheduleFree", "schedulefree: RAdamScheduleFree", "schedulefree: SGDScheduleFree",
    "schedulefree: AdamWScheduleFreePaper", "timm: radamlegacy", "timm: radabelief", "timm: mars", "timm: adan",
    "timm: lookahead_adam", "timm: lookahead_radam", "timm: nadamw", "timm: adopt",
    "torch_optimizer: RAdam", "torch_optimizer: RangerVA", "torch_optimizer: RangerQH",
    "torch_optimizer: Lookahead", "torch_optimizer: A2GradExp", "torch_optimizer: Shampoo",
    "pytorch_optimizer: adapnm", "pytorch_optimizer: laprop", "pytorch_optimizer: ranger",
    "pytorch_optimizer: schedulefreeradam",
    "timm: muon", "pytorch_optimizer: muon",
    "torch.optim: RAdam", "torch.optim: NAdam", "torch.optim: ASGD(t0=3, weight_decay=0.1)",
)  # fmt: skip
#: those that no program can hold → why
REFUSED = {
    "torch.optim: LBFGS": "closure",
    "torch.optim: Adam(differentiable=True)": "differentiable",
    "timm: adahessian": "create_graph=True",
    "timm: adamp": "value of a tensor",
    "torch_optimizer: Adahessian": "create_graph=True",
    "torch_optimizer: SWATS": "value of a tensor",
    "schedulefree: AdamWScheduleFreeClosure": "closure",
    "pytorch_optimizer: adashift": "a deque",
    "pytorch_optimizer: dadaptadam": "value of a tensor",
    "pytorch_optimizer: kron": "numpy.random.random()",
}
ALL = {case.id: case for case in cases()}


def check(case: Case, steps: int) -> None:
    result = run(case, steps)
    if result.error is None:
        assert result.refused or result.absent
    else:
        assert result.error <= tolerance(case, result)


@pytest.mark.parametrize("name", BRANCHY)
def test_branches(name: str) -> None:
    """Twelve steps pass each branch."""
    result = run(ALL[name], 12)
    assert result.error is not None, result.refused
    assert result.error <= tolerance(ALL[name], result)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert REFUSED[name] in run(ALL[name], 2).refused


@pytest.mark.sweep
@pytest.mark.parametrize("library", LIBRARIES)
def test_all(library: str) -> None:
    for case in ALL.values():
        if case.library == library and case.id not in BRANCHY:
            check(case, 12)


def test_evaluation_between_steps() -> None:
    """`train()` and `eval()` of schedulefree move the parameters in place, between calls."""
    schedulefree = pytest.importorskip("schedulefree")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model = Model()
        other = copy.deepcopy(model)
        optimizer, reference = (
            schedulefree.AdamWScheduleFree(m.parameters(), lr=0.01, warmup_steps=3)
            for m in (model, other)
        )
        graph = Train(model, optimizer)
        for _ in range(4):
            for o in (optimizer, reference):
                o.train()
            for _ in range(3):
                x, y = torch.randn(4, 2, 5, 5), torch.randn(4, 3)
                graph(x, y)
                reference.zero_grad()
                ((other(x) - y) ** 2).mean().backward()
                reference.step()
            for o in (optimizer, reference):
                o.eval()
            for p, q in zip(model.parameters(), other.parameters()):
                torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
        with pytest.raises(Exception, match="not in train mode"):
            graph(x, y)
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize(
    "by_hand", [True, pytest.param(False, marks=pytest.mark.sweep)], ids=["timm's schedule", "none"]
)
def test_layer_decay(by_hand: bool) -> None:
    """timm's schedulers multiply `lr_scale` into `lr`; where none does, the graph does."""
    timm = pytest.importorskip("timm")
    from timm.scheduler import CosineLRScheduler

    torch.manual_seed(0)
    model = Model().double()
    other = copy.deepcopy(model)

    def make(m: Any) -> Any:
        groups = [
            {"params": m.conv.parameters(), "lr_scale": 0.25},
            {"params": [*m.head.parameters(), *m.norm.parameters()], "lr_scale": 1.0},
        ]
        optimizer = timm.optim.create_optimizer_v2(groups, opt="adamw", lr=0.01)
        words: Any = {"warmup_t": 3, "warmup_lr_init": 1e-4, "t_in_epochs": False}
        return optimizer, CosineLRScheduler(optimizer, 20, **words) if by_hand else None

    (optimizer, schedule), (reference, expected) = make(model), make(other)
    if not by_hand:
        reference.param_groups[0]["lr"] *= 0.25
    graph = Train(model, optimizer)
    for i in range(6):
        x, y = torch.randn(4, 2, 5, 5).double(), torch.randn(4, 3).double()
        graph(x, y)
        reference.zero_grad()
        ((other(x) - y) ** 2).mean().backward()
        reference.step()
        for s in (schedule, expected):
            if s is not None:
                s.step_update(i + 1)
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    assert len(graph._state.plans) == 1, "the rates change at each step"


def test_layer_decay_by_a_scheduler_that_cannot_be_found() -> None:
    """`gc.freeze()` hides a scheduler, of which the graph cannot know whether it multiplies by `lr_scale`."""
    timm = pytest.importorskip("timm")
    from timm.scheduler import CosineLRScheduler

    model = Model()
    groups = [{"params": [*model.parameters()], "lr_scale": 0.25}]
    optimizer = timm.optim.create_optimizer_v2(groups, opt="adamw", lr=0.01)
    schedule = CosineLRScheduler(optimizer, 20, warmup_t=3, t_in_epochs=False)
    graph = Train(model, optimizer)
    x, y = torch.randn(4, 2, 5, 5), torch.randn(4, 3)
    gc.freeze()
    try:
        with pytest.raises(flow.GraphError, match=r"Call gc.unfreeze\(\)"):
            graph(x, y)
    finally:
        gc.unfreeze()
    graph(x, y)
    assert schedule.optimizer is optimizer

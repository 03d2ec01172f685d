"""Training that is killed and goes on elsewhere, one rank of test_restart.py: `… RANK WORLD STORE CHECK…`.

Each step is over the same 24 examples, whatever the number of ranks, in float64: all ways of dividing it make the steps
of one process up to rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from data_parallel_ranks import run_checks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gflow as flow

CHECKS: dict[str, Callable[[int, int], None]] = {}
#: steps before the checkpoint, and in all
SAVED, STEPS = 3, 6


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 3)
    ).double()


def optimizer_of(model: nn.Module) -> tuple[Any, Any]:
    made = torch.optim.AdamW(model.parameters(), 0.02)
    return made, torch.optim.lr_scheduler.ExponentialLR(made, 0.8)


class Train(flow.nn.Graph):
    def __init__(self, model: nn.Module, micro: int = 1, stage: int = 0) -> None:
        super().__init__()
        self.model = model
        optimizer, schedule = optimizer_of(model)
        self.add_optimizer(optimizer, lr_sch=schedule)
        if micro > 1:
            self.config.set_gradient_accumulation_steps(micro)
        if stage:
            self.config.enable_zero(stage=stage, shard_min_size=1)

    def build(self, x: Tensor, t: Tensor) -> Tensor:
        loss = (self.model(x) - t).square().mean()
        loss.backward()
        return loss


def batch(step: int, rank: int = 0, world: int = 1) -> list[Tensor]:
    """This rank's part of the examples of a step."""
    g = torch.Generator().manual_seed(step)
    whole = torch.randn(24, 6, generator=g).double(), torch.randn(24, 3, generator=g).double()
    return [part.chunk(world)[rank] for part in whole]


def eager(steps: int) -> tuple[nn.Module, list[float]]:
    """The model after so many steps of one process, and the losses."""
    model = net()
    optimizer, schedule = optimizer_of(model)
    losses = []
    for step in range(steps):
        x, t = batch(step)
        optimizer.zero_grad()
        loss = (model(x) - t).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model, losses


def divided(how: str, world: int) -> tuple[nn.Module, Train]:
    """A model, and a graph that trains it on all ranks."""
    model = net()
    if how == "pipeline":
        for n in range(5):
            model[n].to(flow.nn.graph.GraphModule).set_stage(n * world // 5)
        return model, Train(model, 4)
    return model, Train(DDP(model), 1, int(how))


def step_of(how: str, train: Train, step: int, rank: int, world: int) -> float:
    """One step; the loss over all examples."""
    if how == "pipeline":
        return float(train(*batch(step)))
    loss = train(*batch(step, rank, world)).detach() / world
    dist.all_reduce(loss)
    return float(loss)


def folder() -> Path:
    return Path(sys.argv[3]).parent / "checkpoint"


def start(how: str, rank: int, world: int) -> None:
    """Save after some steps, and train on until killed."""
    _, train = divided(how, world)
    for step in range(10_000):
        step_of(how, train, step, rank, world)
        if step == SAVED - 1:
            flow.distributed.save_checkpoint(train, folder())
            print("saved", flush=True)


def go_on(how: str, rank: int, world: int) -> None:
    """The steps after the checkpoint are those that would have been."""
    model, train = divided(how, world)
    for p in model.parameters():
        nn.init.zeros_(p)  # all that counts is in the checkpoint
    flow.distributed.load_checkpoint(train, folder())
    losses = [step_of(how, train, step, rank, world) for step in range(SAVED, STEPS)]
    compare(model, losses)
    uninterrupted, again = divided(how, world)
    for step in range(STEPS):
        loss = step_of(how, again, step, rank, world)
    if world == 2:  # as many as have saved
        assert loss == losses[-1]
        for a, b in zip(model.state_dict().values(), uninterrupted.state_dict().values()):
            assert torch.equal(a, b), "not the bits of a run that goes through"


def compare(model: nn.Module, losses: list[float]) -> None:
    """With steps of eager in one process."""
    reference, wanted = eager(STEPS)
    torch.testing.assert_close(losses, wanted[SAVED:], rtol=1e-10, atol=1e-10)
    for (name, a), b in zip(model.state_dict().items(), reference.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


for _how in ("0", "3", "pipeline"):
    CHECKS[f"start {_how}"] = lambda rank, world, how=_how: start(how, rank, world)
    CHECKS[f"go on {_how}"] = lambda rank, world, how=_how: go_on(how, rank, world)

if __name__ == "__main__":
    run_checks(CHECKS)

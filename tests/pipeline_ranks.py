"""Pipeline stages, one rank of `test_pipeline.py`: `pipeline_ranks.py RANK WORLD STORE CHECK…`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_parallel_ranks import run_checks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._pytree import tree_leaves

import gflow as flow
from gflow.runtime.stored.sharded import load_sharded

CHECKS: dict[str, Callable[[int, int], None]] = {}


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


class Net(nn.Module):
    """Blocks in a row, and a value of the first that the last reads."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12))
        self.blocks = nn.ModuleList(nn.Linear(12, 12) for _ in range(blocks - 2))
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = kept = torch.tanh(self.first(x))
        for block in self.blocks:
            h = torch.tanh(block(h)) + h
        return self.last(h + kept)


class Train(flow.nn.Graph):
    def __init__(self, model: Net, optimizer: Any, micro: int, schedule: str = "") -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(micro)
        if schedule:
            self.config.set_pipeline_schedule(schedule)

    def build(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        y = self.model(x)
        loss = (y - t).square().mean()
        loss.backward()
        return loss, y


def stage(model: Net, stages: int) -> None:
    parts = [model.first, *model.blocks, model.last]
    for n, part in enumerate(parts):
        part.to(flow.nn.graph.GraphModule).set_stage(n * stages // len(parts))


def eager_step(
    model: Net,
    optimizer: Any,
    x: Tensor,
    t: Tensor,
    micro: int,
    clip: float = 0.0,
    scaler: Any = None,
) -> tuple[Tensor, Tensor]:
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    optimizer.zero_grad()
    losses, results = [], []
    for a, b in zip(x.chunk(micro), t.chunk(micro)):
        y = model(a)
        loss = (y - b).square().mean()
        scaler.scale(loss / micro).backward()
        losses.append(loss.detach())
        results.append(y.detach())
    if clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    return torch.stack(losses).mean(), torch.cat(results)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator), torch.randn(16, 3, generator=generator)


def like_one_process(
    world: int, schedule: str, stages: int, make: Callable[[Any], Any], clip: float = 0.0
) -> None:
    model = Net(max(stages, 3))
    eager = copy.deepcopy(model)
    stage(model, stages)
    for part in (model.first, *model.blocks) if clip else ():
        part.to(flow.nn.graph.GraphModule).activation_checkpointing = True
    theirs = make(eager.parameters())
    group = {"clip_grad_max_norm": clip, "clip_grad_norm_type": 2.0} if clip else {}
    mine = make([{"params": list(model.parameters()), **group}])
    train = Train(model, mine, 4, schedule)
    for step in range(3):
        found, wanted = train(*batch(step)), eager_step(eager, theirs, *batch(step), 4, clip)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(list(train._state.plans)) == 1
    rank = torch.distributed.get_rank()
    kept = [p.untyped_storage().nbytes() > p.element_size() for p in model.last.parameters()]
    assert all(kept) == any(kept) == (rank == (stages - 1) % world), "one rank keeps a stage"
    for (name, a), b in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    same_state(mine, theirs)
    found, wanted = train(*batch(9)), eager_step(eager, theirs, *batch(9), 4, clip)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def same_state(mine: Any, theirs: Any) -> None:
    states = [o.state_dict()["state"] for o in (mine, theirs)]
    for key, entry in states[1].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(states[0][key][name], value, rtol=1e-5, atol=1e-5)


@check
def gradient_scaler(rank: int, world: int) -> None:
    """A step whose gradients overflow in one stage is skipped on all ranks, which have one scale."""
    model = Net(3)
    eager = copy.deepcopy(model)
    stage(model, world)
    theirs = torch.optim.AdamW(eager.parameters(), 0.01)
    mine = torch.optim.AdamW(
        [
            {
                "params": list(model.parameters()),
                "clip_grad_max_norm": 0.05,
                "clip_grad_norm_type": 2,
            }
        ],
        0.01,
    )
    ours = flow.amp.GradScaler(init_scale=2.0**10, growth_interval=2)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    train = Train(model, mine, 4)
    train.set_grad_scaler(ours)
    for step in range(4):
        x, t = batch(step)
        if step == 2:
            t[0, 0] = 1e38
        found, wanted = train(x, t), eager_step(eager, theirs, x, t, 4, 0.05, reference)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert ours.get_scale() == reference.get_scale(), step
    assert ours.get_scale() == 2.0**10
    for (name, a), b in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    same_state(mine, theirs)


@check
def several_pipelines(rank: int, world: int) -> None:
    """Two pipelines, each with its own half of the batch, make the steps of one process with all of it: schedules,
    clipping, a scaler, ZeRO in the stages, both orders of the mesh, sharded checkpoints."""
    for axes, stages, zero, make in (
        (("pp", "dp"), 2, 0, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (("dp", "pp"), 4, 2, lambda p: torch.optim.AdamW(p, 0.01)),
        (("pp", "dp"), 2, 3, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    ):
        model = Net(max(stages, 3))
        model.first = model.first[0]  # without batch norm, which has the statistics of a half
        eager = copy.deepcopy(model)
        stage(model, stages)
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=axes)
        place, copied = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        parallel = DDP(model, process_group=mesh.get_group("dp"))
        theirs = make(eager.parameters())
        clip = {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0}
        mine = make([{"params": list(model.parameters()), **clip}])
        scalers = [s(init_scale=2.0**10) for s in (flow.amp.GradScaler, torch.amp.GradScaler)]
        train = Train(parallel, mine, 4)
        train.set_grad_scaler(scalers[0])
        if zero:
            train.config.enable_zero(True, stage=zero, shard_min_size=1)
        for step in range(4):
            if step == 3:  # all is whole now
                for a, b in zip(model.parameters(), eager.parameters(), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
                same_state(mine, theirs)
            x, t = batch(step)
            _, y = train(x.chunk(2)[copied], t.chunk(2)[copied])
            _, wanted = eager_step(eager, theirs, x, t, 8, 0.05, scalers[1])
            torch.testing.assert_close(y, wanted.chunk(2)[copied], rtol=1e-5, atol=1e-5)
            if step == 2:
                model.state_dict()
        assert len(list(train._state.plans)) == 1
        kept = {
            k: v.untyped_storage().nbytes() // 4 for k, v in mine.state[model.last.weight].items()
        }
        owner = place == (stages - 1) % 2
        moments = [n for k, n in kept.items() if k != "step"]
        assert moments == [36 if owner and not zero else 1] * len(moments), (
            "one place keeps a stage"
        )
        flow.distributed.save_checkpoint(train, folder(str(zero)))
        saved = load_sharded(folder(str(zero)))
        flow.distributed.unshard(parallel, mine)
        whole = train.state_dict()
        for a, b in zip(tree_leaves(saved), tree_leaves(whole), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def folder(name: str) -> Path:
    return Path(sys.argv[3]).parent / f"checkpoint{name}"


@check
def schedules(rank: int, world: int) -> None:
    """Schedules make the steps of one process: skip connection, batch norm, clipping, checkpointing."""

    def sgd(p: Any) -> Any:
        return torch.optim.SGD(p, 0.1, momentum=0.9)

    like_one_process(world, "gpipe", world, sgd)
    like_one_process(world, "1f1b", world, lambda p: torch.optim.AdamW(p, 0.01), 0.05)
    if world == 2:
        like_one_process(world, "interleaved", 4, sgd, 0.05)


@check
def refused(rank: int, world: int) -> None:
    """What stages cannot share is an error that says so."""

    def fails(run: Callable[[], Any], *words: str) -> None:
        with pytest.raises(flow.GraphError) as error:
            run()
        assert not [w for w in words if w not in str(error.value)], error.value

    model = Net(3)
    stage(model, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    fails(lambda: Train(DDP(model), sgd, 4)(*batch(0)), "leaves no pipelines", "process_group=")
    fails(lambda: Train(model, sgd, 1)(*batch(0)), "set_gradient_accumulation_steps")
    train = Train(model, sgd, 4)
    train.config.enable_zero()
    fails(lambda: train(*batch(0)), "enable_zero", "DistributedDataParallel")
    model.last.to(flow.nn.graph.GraphModule).set_stage(0)
    model.first.to(flow.nn.graph.GraphModule).set_stage(1)
    fails(lambda: Train(model, sgd, 4)(*batch(0)), "runs after it")
    model.last.to(flow.nn.graph.GraphModule).set_stage(5)
    fails(lambda: Train(model, sgd, 4)(*batch(0)), "numbered")


if __name__ == "__main__":
    run_checks(CHECKS)

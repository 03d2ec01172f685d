"""One rank of `test_mesh.py`: ZeRO over one dimension of a mesh, tensor parallelism over the other; prints what failed,
as JSON."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from data_parallel_ranks import run_checks
from global_ranks import OPTIMIZERS, STYLES, Decoder, same, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import gflow as flow

CHECKS: dict[str, Callable[[int, int], None]] = {}


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


def mesh() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Train(flow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any, stage: int, clip: float = 0.0) -> None:
        super().__init__()
        self.model, self.clip = model, clip
        self.add_optimizer(optimizer)
        if stage:
            self.config.enable_zero(True, stage=stage, shard_min_size=1)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(self.model(x), y)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return loss


def batch(step: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randint(0, 32, (4, 6), generator=g), torch.randint(0, 32, (4, 6), generator=g)


def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    model = Decoder()
    return parallelize_module(copy.deepcopy(model), mesh()["tp"], STYLES), model


def eager(model: nn.Module, optimizer: Any, step: int, clip: float = 0.0) -> Tensor:
    x, y = batch(step)
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss


def placed(t: Tensor) -> Tensor:
    return distribute_tensor(t, mesh(), [Shard(0), Replicate()])


def kept(tensors: Any) -> list[int]:
    return [
        (t._local_tensor if isinstance(t, DTensor) else t).untyped_storage().nbytes()
        for t in tensors
    ]


@check
def zero(rank: int, world: int) -> None:
    """Each stage is bit for bit plain data parallelism × tensor parallelism, and that is one process's step."""
    for name, clip, stages in (("sgd", 0.0, (0, 1, 2, 3)), ("adamw", 0.05, (0, 2, 3))):
        first: list[Tensor] = []
        for stage in stages:
            model, alone = models()
            optimizer, reference = (
                OPTIMIZERS[name](model.parameters()),
                OPTIMIZERS[name](alone.parameters()),
            )
            train = Train(model, optimizer, stage, clip)
            for step in range(3):
                wanted = eager(alone, reference, step, clip)
                same(train(*map(placed, batch(step))), wanted)
            state = [v for e in optimizer.state.values() for v in e.values() if v.numel() > 1]
            for tensors, divided in ((state, stage > 0), ([*model.parameters()], stage > 2)):
                for n, t in zip(kept(tensors), tensors):
                    assert (n == 4) is divided or t.numel() == 1, (stage, n)
            values = model.state_dict()
            for value, q in zip(values.values(), alone.state_dict().values(), strict=True):
                same(value, q)
            found = [whole(v) for v in values.values()]
            first = first or found
            if not clip:
                assert all(map(torch.equal, first, found)), stage


if __name__ == "__main__":
    run_checks(CHECKS)

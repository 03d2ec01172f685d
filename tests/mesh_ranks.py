"""One rank of `test_mesh.py`: ZeRO over one dimension of a mesh, tensor parallelism over the other; prints what failed,
as JSON."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data_parallel_ranks import run_checks
from global_ranks import OPTIMIZERS, STYLES, Decoder, same, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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
    def __init__(
        self, model: nn.Module, optimizer: Any, stage: int, clip: float = 0.0, micro: int = 1
    ) -> None:
        super().__init__()
        self.model, self.clip = model, clip
        self.add_optimizer(optimizer)
        if stage:
            self.config.enable_zero(True, stage=stage, shard_min_size=1)
        if micro > 1:
            self.config.set_gradient_accumulation_steps(micro)

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
    """Stage 3 is bit for bit plain data parallelism × tensor parallelism, and that is one process's step."""
    plain, divided = (trained("sgd", 0.0, stage) for stage in (0, 3))
    assert all(map(torch.equal, plain, divided))


@check
def zero_2(rank: int, world: int) -> None:
    """Stage 2 with clipping, whose norm is added up by pieces."""
    trained("adamw", 0.05, 2)


def trained(name: str, clip: float, stage: int) -> list[Tensor]:
    """The state of a model after three steps, which is that after steps of one process."""
    model, alone = models()
    optimizer, reference = (OPTIMIZERS[name](m.parameters()) for m in (model, alone))
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
    return [whole(v) for v in values.values()]


@check
def scaled(rank: int, world: int) -> None:
    """A gradient scaler skips a step whose gradients are not finite, on all ranks; gradients that are kept are whole
    along the dimension of the batch; `unshard()` gathers what lies in pieces."""
    model, alone = models()
    optimizer, reference = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, alone))
    train = Train(model, optimizer, 3)
    train.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**10))
    train.config.keep_gradients()
    for step in range(3):
        before = [whole(v) for v in model.state_dict().values()]
        if step == 1:  # the embedding of one word, which is on some ranks alone
            bad = batch(step)[0][0, 0]
            for words in (model.words.weight, alone.words.weight):
                local = words.detach()
                local = local.full_tensor() if isinstance(local, DTensor) else local
                local[bad] = float("inf")
                if isinstance(words, DTensor):
                    local = local.chunk(2)[words.device_mesh.get_local_rank()]
                    words._local_tensor.copy_(local)
                else:
                    words.data.copy_(local)
            before = [whole(v) for v in model.state_dict().values()]
        train(*map(placed, batch(step)))
        if step == 1:
            after = [whole(v) for v in model.state_dict().values()]
            assert all(torch.equal(a, b) for a, b in zip(before, after)), "not skipped"
            return
        eager(alone, reference, step)
        for value, q in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
            same(value, q)
        same(train.grad("model.up.weight"), alone.up.weight.grad)
        train(*map(placed, batch(step)))
        eager(alone, reference, step)
        flow.distributed.unshard(model)
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            same(p, q)


def told(call: Callable[[], Any]) -> str:
    try:
        call()
    except flow.GraphError as error:
        return str(error)
    raise AssertionError("it was not refused")


class Rows(Train):
    """Also returns logits, which are rows of the batch."""

    def build(self, x: Tensor, y: Tensor) -> Any:
        logits = self.model(x)
        loss = loss_of(logits, y)
        loss.backward()
        return loss, logits, self.model.words.weight.sum(1)


@check
def accumulated(rank: int, world: int) -> None:
    """Each rank splits the rows that it holds: results come in the order of the batch, and gradients are added up over
    ranks once a step."""
    for name, stage in (("sgd", 0), ("adamw", 3)):
        model, alone = models()
        optimizer, reference = (OPTIMIZERS[name](m.parameters()) for m in (model, alone))
        train = Rows(model, optimizer, stage, micro=2)
        train.config.keep_gradients()
        for step in range(2):
            wanted = alone(batch(step)[0])
            sums = alone.words.weight.detach().sum(1)
            loss = eager(alone, reference, step)
            got, logits, rows = train(*map(placed, batch(step)))
            same(got, loss)
            same(logits, wanted)
            same(rows, torch.cat([sums, sums]))
            same(train.grad("model.up.weight"), alone.up.weight.grad)
        for value, q in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
            same(value, q)


@check
def fully_sharded(rank: int, world: int) -> None:
    """`parallelize_module`, then `fully_shard` over the other dimension: ranks along dp have batches of their own."""
    for name, clip, micro in (("adamw", 0.05, 1), ("sgd", 0.0, 2)):
        model, alone = models()
        for part in (model.attention, model):
            fully_shard(part, mesh=mesh()["dp"])
        optimizer, reference = (OPTIMIZERS[name](m.parameters()) for m in (model, alone))
        train = Train(model, optimizer, 0, clip, micro)
        for step in range(3):
            mine = [t.chunk(2)[mesh()["dp"].get_local_rank()] for t in batch(step)]
            wanted = loss_of(alone(mine[0]), mine[1])
            eager(alone, reference, step, clip)
            same(train(*mine), wanted)
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            assert p._local_tensor.numel() * 2 <= q.numel(), "it was gathered"
            same(p, q)
            for key, value in reference.state[q].items():
                same(optimizer.state[p][key], value)


@check
def dropout(rank: int, world: int) -> None:
    """Ranks with copies of a value draw the same, whatever they are seeded with; parts of a value draw others."""

    class Drop(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    torch.manual_seed(rank)
    drop = Drop()
    for _ in range(2):
        found = drop(placed(torch.ones(8, 64)))
        assert found.placements == (Shard(0), Replicate()), found.placements
        every = [torch.empty_like(found._local_tensor) for _ in range(world)]
        dist.all_gather(every, found._local_tensor)
        assert torch.equal(every[0], every[1])
        assert torch.equal(every[2], every[3])
        assert not torch.equal(every[0], every[2])


def checkpoint() -> Path:
    return Path(sys.argv[3]).parent / "checkpoint"


@check
def saved(rank: int, world: int) -> None:
    """Each rank writes its parts and pieces; a graph over another mesh goes on from them."""
    model, alone = models()
    optimizer, reference = (OPTIMIZERS["adamw"](m.parameters()) for m in (model, alone))
    train = Train(model, optimizer, 3)
    for step in range(2):
        eager(alone, reference, step)
        train(*map(placed, batch(step)))
    flow.distributed.save_checkpoint(train, checkpoint())
    assert all(n == 4 for n in kept(model.parameters())), "gathered"
    eager(alone, reference, 2)
    train(*map(placed, batch(2)))
    other, _ = models()
    for p in other.parameters():
        nn.init.zeros_(p)
    for part in (other.attention, other):
        fully_shard(part, mesh=mesh()["dp"])
    again = Train(other, OPTIMIZERS["adamw"](other.parameters()), 0)
    flow.distributed.load_checkpoint(again, checkpoint())
    again(*(t.chunk(2)[mesh()["dp"].get_local_rank()] for t in batch(2)))
    for value, p, q in zip(
        model.state_dict().values(), other.parameters(), alone.parameters(), strict=True
    ):
        same(value, q)
        same(p, q)
    flow.distributed.save_checkpoint(again, checkpoint())


@check
def gone_on(rank: int, world: int) -> None:
    """Two ranks go on from what four have saved."""
    torch.manual_seed(1)
    alone = Decoder()
    for p in alone.parameters():
        nn.init.zeros_(p)
    over = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = parallelize_module(copy.deepcopy(alone), over, STYLES)
    train = Train(model, OPTIMIZERS["adamw"](model.parameters()), 0)
    flow.distributed.load_checkpoint(train, checkpoint())
    train(*batch(3))
    go_on(alone)
    for value, q in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
        same(value, q)


def go_on(model: nn.Module) -> None:
    """The step after the checkpoint, of one process."""
    for p in model.parameters():
        nn.init.zeros_(p)
    train = Train(model, OPTIMIZERS["adamw"](model.parameters()), 0)
    flow.distributed.load_checkpoint(train, checkpoint())
    train(*batch(3))


@check
def refused(rank: int, world: int) -> None:
    """What a graph does not do over a mesh is an error that says what to write instead."""
    model, _ = models()
    copies = [distribute_tensor(t, mesh(), [Replicate(), Replicate()]) for t in batch(0)]
    train = Train(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    text = told(lambda: train(*copies))
    assert "split the batch" in text.lower(), text
    train = Train(model, torch.optim.SGD(model.parameters(), 0.1), 1, micro=2)
    text = told(lambda: train(placed(batch(0)[0]), copies[1]))
    assert "'y' over none" in text, text
    fully_shard(model, mesh=mesh()["dp"])
    train = Train(model, torch.optim.SGD(model.parameters(), 0.1), 0)
    text = told(lambda: train(*map(placed, batch(0))))
    assert "x.to_local()" in text, text


if __name__ == "__main__":
    run_checks(CHECKS)

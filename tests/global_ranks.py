"""One rank of `test_global.py`: `python global_ranks.py RANK WORLD STORE CHECK…` prints what failed, as JSON."""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gflow as flow

Tensor = torch.Tensor
#: eps is large enough that gradients of rounding errors move nothing
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
}


def mesh() -> Any:
    """Of two dimensions with four ranks, of one with two."""
    if dist.get_world_size() == 4:
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        parts = (
            f(x).view(b, t, -1, width // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, words: int = 32, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        x = x + self.attention(self.n1(x))
        return self.head(x + self.down(F.gelu(self.up(self.n2(x)))))


STYLES = {
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.o": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
    "words": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(use_local_output=False),
}


class Train(flow.nn.Graph):
    def __init__(self, model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def whole(t: Tensor) -> Tensor:
    t = t.detach()
    return t.full_tensor() if isinstance(t, DTensor) else t


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(whole(found), wanted.detach(), rtol=1e-5, atol=1e-5)


def trained(
    parallel: nn.Module,
    alone: nn.Module,
    loss: Any,
    batch: Callable[[], tuple[Tensor, Tensor]],
    placed: Callable[[Tensor], Tensor],
) -> None:
    """Three steps with each optimizer: of a graph over all ranks, and of PyTorch on one."""
    for make in OPTIMIZERS.values():
        optimizer, reference = make(parallel.parameters()), make(alone.parameters())
        graph = Train(parallel, loss, optimizer)
        for _ in range(3):
            x, y = batch()
            reference.zero_grad()
            wanted = loss(alone(x), y)
            wanted.backward()
            reference.step()
            same(graph(placed(x), placed(y)), wanted)
        for p, q in zip(parallel.parameters(), alone.parameters(), strict=True):
            same(p, q)
        for p, q in zip(parallel.parameters(), alone.parameters(), strict=True):
            for key, value in reference.state[q].items():
                if isinstance(value, Tensor):
                    same(optimizer.state[p][key], value)
                    if isinstance(p.data, DTensor) and value.dim():
                        assert optimizer.state[p][key].placements == p.data.placements


def mlp(rank: int) -> None:
    """Parameters of `distribute_tensor`; a batch that is split where the mesh has a dimension for it."""
    torch.manual_seed(0)
    model, over = Mlp(), mesh()
    alone = copy.deepcopy(model)
    lead = [Replicate()] * (over.ndim - 1)
    for module, name, how in (
        (model.a, "weight", Shard(0)), (model.a, "bias", Shard(0)),
        (model.b, "weight", Shard(1)), (model.b, "bias", Replicate()),
    ):  # fmt: skip
        value = distribute_tensor(getattr(module, name).detach(), over, [*lead, how])
        setattr(module, name, nn.Parameter(value))
    rows = [Shard(0), Replicate()][-over.ndim :] if over.ndim > 1 else [Replicate()]
    trained(
        model, alone, F.mse_loss, lambda: (torch.randn(4, 8), torch.randn(4, 8)),
        lambda t: distribute_tensor(t, over, rows),
    )  # fmt: skip


def decoder(rank: int) -> None:
    """`parallelize_module`: embedding, attention, cross entropy over split words."""
    torch.manual_seed(1)
    model, over = Decoder(), mesh()
    alone = copy.deepcopy(model)
    parallelize_module(model, over["tp"], STYLES)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def placed(t: Tensor) -> Tensor:
        return distribute_tensor(t, over, [Shard(0), Replicate()]) if over.ndim > 1 else t

    trained(
        model, alone, loss,
        lambda: (torch.randint(0, 32, (4, 6)), torch.randint(0, 32, (4, 6))), placed,
    )  # fmt: skip


def names(rank: int) -> None:
    """OneFlow's words, in eager and in `build()`."""
    world = flow.env.get_world_size()
    assert flow.env.get_rank() == rank
    assert world == dist.get_world_size()
    ranks = flow.placement("cpu", list(range(world)))
    split, broadcast = flow.sbp.split(0), flow.sbp.broadcast
    x = flow.to_global(torch.full((2, 4), float(rank)), ranks, split)
    assert x.shape == (2 * world, 4)
    assert flow.to_global(x, sbp=broadcast).to_local().shape == (2 * world, 4)
    assert flow.to_local(x).shape == (2, 4)
    model = flow.to_global(nn.Linear(4, 4), ranks, broadcast)

    class Forward(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = flow.to_global(self.model(x), ranks, flow.sbp.split(1))
            return y, flow.to_global(y.exp(), ranks, broadcast)

    y, z = Forward()(x)
    wanted = F.linear(whole(x), whole(model.weight), whole(model.bias))
    assert y.placements == (Shard(1),)
    assert z.placements == (Replicate(),)
    same(y, wanted)
    same(z, wanted.exp())


def refused(rank: int) -> None:
    """What parts do not allow: an error that names the line, or the input."""
    over = mesh()["tp"]

    def error(model: nn.Module, x: Tensor) -> str:
        class Forward(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def build(self, x: Tensor) -> Tensor:
                return self.model(x).softmax(-1)

        try:
            Forward()(x)
        except Exception as found:
            return "\n".join([str(found), *getattr(found, "__notes__", ())])
        raise AssertionError("it was not refused")

    class Moved(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.redistribute(over, [Replicate()])

    told = error(Moved(), distribute_tensor(torch.ones(4, 8), over, [Shard(0)]))
    assert "gflow.to_global(x, placement, sbp)" in told, told
    told = error(parallelize_module(nn.Linear(8, 4), over, ColwiseParallel()), torch.ones(4, 8))
    assert "use_local_output=False" in told, told
    assert "global_ranks.py" in told, told
    told = error(parallelize_module(nn.Linear(8, 4), over, RowwiseParallel()), torch.ones(4, 8))
    assert "input_layouts" in told, told
    uneven = nn.Linear(8, 4)
    uneven.weight = nn.Parameter(distribute_tensor(torch.ones(5, 8), over, [Shard(0)]))
    uneven.bias = None
    told = error(uneven, torch.ones(4, 8))
    assert "evenly" in told, told
    assert "weight" in told, told


def batch_norm(rank: int) -> None:
    """Statistics are those of the whole batch, of `SyncBatchNorm` and of `BatchNorm`; `explain()` says what is sent."""
    over = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for sync in (False, True):
        torch.manual_seed(2)
        model: nn.Module = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2)
        )
        alone = copy.deepcopy(model)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if sync else model
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
        graph = Train(model, F.mse_loss, optimizers[0])
        for _ in range(2):
            x, y = torch.randn(4, 3, 6, 6), torch.randn(4, 2)
            optimizers[1].zero_grad()
            wanted = F.mse_loss(alone(x), y)
            wanted.backward()
            optimizers[1].step()
            same(graph(*(distribute_tensor(t, over, [Shard(0)]) for t in (x, y))), wanted)
        for p, q in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
            same(p, q)
    assert "bytes sent" in str(graph.explain())


def gradients(rank: int) -> None:
    """`graph.grad()`, and clipping by the norm over all ranks."""
    over = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(3)
    model = nn.Linear(8, 4, bias=False)
    alone = copy.deepcopy(model)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), over, [Shard(0)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Clip(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.keep_gradients()

        def build(self, x: Tensor) -> Tensor:
            loss = (self.model(x) ** 2).sum()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            return loss

    graph, x = Clip(), torch.randn(3, 8)
    graph(x)
    (alone(x) ** 2).sum().backward()
    nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
    found = graph.grad("model.weight")
    assert found.placements == (Shard(0),)
    same(found, alone.weight.grad)
    assert model.state_dict()["weight"].placements == (Shard(0),)
    parallel = parallelize_module(copy.deepcopy(alone), over, ColwiseParallel())
    alone.zero_grad()
    alone(x).sum().backward()
    flow.compile(parallel)(x).sum().backward()  # runs in eager mode
    same(parallel.weight.grad, alone.weight.grad)


CHECKS = {
    "gradients": gradients,
    "batch_norm": batch_norm,
    "mlp": mlp,
    "decoder": decoder,
    "names": names,
    "refused": refused,
}


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    store = dist.FileStore(sys.argv[3], world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[str, str | None] = {}
    for label in sys.argv[4:]:
        try:
            CHECKS[label](rank)
            found[label] = None
        except Exception:
            found[label] = traceback.format_exc()
            break  # the ranks are not in step any more
    print(json.dumps(found), flush=True)
    os._exit(0)  # a rank that failed leaves the others waiting


if __name__ == "__main__":
    main()

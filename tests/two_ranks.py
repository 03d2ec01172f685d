"""What each of two Gloo ranks runs in tests/test_ranks.py: `python two_ranks.py RANK WORLD FILE`.

Prints one JSON object: for each check what went wrong, or null.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

import gflow as flow
from gflow.dialects.program import CollectiveStep

WORLD = 2
CHECKS: dict[str, Callable[[int], None]] = {}


def check(function: Callable[[int], None]) -> Callable[[int], None]:
    CHECKS[function.__name__] = function
    return function


def ops() -> Any:
    return torch.ops._c10d_functional


def name() -> str:
    return dist.group.WORLD.group_name  # type: ignore[union-attr]


class Call(flow.nn.Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def wait(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [wait(y) for y in x]
    return ops().wait_tensor(x)


def in_place(x: Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y)
    work = dist.all_reduce(y, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    gathered = torch.empty(WORLD * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(gathered, y + x)
    parts = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(parts, x)
    share = torch.empty(x.shape[0] // WORLD, *x.shape[1:])
    dist.reduce_scatter_tensor(share, gathered[: x.shape[0]])
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    z = x - 1
    dist.broadcast(z, 1)
    return y, gathered, parts, share, swapped, z


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": lambda x: fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1,
    "avg, max": lambda x: [fc.all_reduce(x, op, dist.group.WORLD) for op in ("max", "min")],
    "gather": lambda x: fc.all_gather_tensor(x + 1, 1, dist.group.WORLD) * 2,
    "scatter": lambda x: fc.reduce_scatter_tensor(x + 1, "sum", 0, dist.group.WORLD) * 2,
    "to all": lambda x: fc.all_to_all_single(x.exp(), None, None, dist.group.WORLD) * 2,
    "broadcast": lambda x: fc.broadcast(x + 1, 1, dist.group.WORLD) * 2,
    "several": lambda x: fc.all_reduce_coalesced([x, x[:2] * 2], "sum", dist.group.WORLD),
    "gather several": lambda x: wait(
        ops().all_gather_into_tensor_coalesced([x * 3, x[:2] * 2], WORLD, name())
    ),
    "scatter several": lambda x: wait(
        ops().reduce_scatter_tensor_coalesced([x * 3, x[:2] * 2], "sum", WORLD, name())
    ),
    "group object": lambda x: wait(ops().all_reduce(x.tanh(), "sum", name())) + 1,
    "in place": in_place,
}


@check
def functions(rank: int) -> None:
    """Each collective as in eager mode, several times."""
    for label, function in FUNCTIONS.items():
        graph, compiled = Call(function), flow.compile(function)
        for n in range(3):
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * n + rank))
            wanted = function(x.clone())
            for found in (graph(x.clone()), compiled(x.clone())):
                torch.testing.assert_close(found, wanted, msg=partial("{}: {}".format, label))


@check
def underscored(rank: int) -> None:
    """The ops that write into their operand."""

    def function(x: Tensor) -> Any:
        y = x * 2
        wait(ops().all_reduce_(y, "sum", name()))
        z = y + 1
        wait(ops().broadcast_(z, 1, name()))
        both = [x + 1, x[:2] * 3]
        wait(ops().all_reduce_coalesced_(both, "sum", name()))
        gathered = torch.empty(WORLD * x.shape[0], *x.shape[1:])
        wait(ops().all_gather_into_tensor_out(x * 5, WORLD, name(), out=gathered))
        return y, z, both, gathered

    x = torch.full((4, 3), rank + 1.0)
    torch.testing.assert_close(Call(function)(x), function(x))


@check
def a_race(rank: int) -> None:
    """Much data, and work that does not depend on it."""

    def function(x: Tensor, w: Tensor) -> Any:
        handle = ops().all_reduce(torch.relu(x * 2 + 1), "sum", name())
        other = torch.tanh(w * 3) - 1
        result = ops().wait_tensor(handle)
        return (result + other).sum(), result

    graph = Call(function)
    w = torch.ones(1 << 18)
    for n in range(6):
        result = graph(torch.full((1 << 18,), float(rank + n)), w)[1]
        wanted = sum(2.0 * (q + n) + 1 for q in range(WORLD))
        assert (result == wanted).all(), (n, result[:4], wanted)


@check
def order(rank: int) -> None:
    """Collectives come in program order on each rank, whatever else the rank computes, also those
    that only one of them needs, equal ones, and under every order of ops."""

    def function(x: Tensor) -> Any:
        fc.all_reduce(x, "sum", dist.group.WORLD)
        b = fc.all_reduce(x, "sum", dist.group.WORLD)
        big = (x @ x.t()).sum() if rank else x.sum()
        c = fc.all_gather_tensor(x * big, 0, dist.group.WORLD)
        d = fc.broadcast(x + 7, 0, dist.group.WORLD)
        e = fc.all_reduce(x * 3, "max", dist.group.WORLD)
        return (d, e.sum() + c.sum()) if rank == 0 else (d, b)

    x = torch.full((4, 4), rank + 1.0)
    for mode in ("SpeedFirst", "MemoryFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu"):
        graph = Call(function)
        graph.config.enable_straighten_algorithm(mode)
        torch.testing.assert_close(graph(x), function(x), msg=partial("{}: {}".format, mode))
    done = 0
    (plan,) = graph._checked().plans
    for step in plan.compiled.program.steps:
        done += isinstance(step, CollectiveStep)
    assert done == 5, done


def _trained(model: nn.Module, mean: bool, checkpoint: bool = False) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Tensor) -> Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            if mean:
                for p in model.parameters():
                    p.grad = fc.all_reduce(p.grad, "sum", dist.group.WORLD) / WORLD
            return loss

    if checkpoint:
        model[0].to(flow.nn.graph.GraphModule).activation_checkpointing = True
    return Train()


class Mixed(nn.Linear):
    """A layer with a collective in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(fc.all_reduce(x, "sum", dist.group.WORLD)).tanh()


@check
def training(rank: int) -> None:
    """Gradients that ranks average: weights stay equal, and are those of one process."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    graph = _trained(model, True)
    for n in range(3):
        x = torch.randn(WORLD * 4, 8, generator=torch.Generator().manual_seed(n))
        graph(x[rank * 4 : rank * 4 + 4])
        optimizer.zero_grad()
        alone(x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(alone.parameters()))


@check
def through_autograd(rank: int) -> None:
    """A collective inside of a module, with its backward, also in a part that is recomputed."""
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(Mixed(8, 8), Mixed(8, 1))
        other = copy.deepcopy(model)
        optimizer = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
        graph = _trained(model, False, checkpoint)
        fast = flow.compile(copy.deepcopy(model))
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
        fast(x).square().mean().backward()
        for n in range(2):
            optimizer.zero_grad()
            other(x).square().mean().backward()
            if n == 0:
                wanted = [p.grad for p in other.parameters()]
                torch.testing.assert_close([p.grad for p in fast.parameters()], wanted)
            optimizer.step()
            graph(x)
        torch.testing.assert_close(list(model.parameters()), list(other.parameters()))


@check
def through_dynamo(rank: int) -> None:
    """torch.compile(backend="gflow"), alone and around DistributedDataParallel."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))

    def function(x: Tensor) -> Tensor:
        return fc.all_reduce(x * 2, "sum", dist.group.WORLD).tanh()

    torch.testing.assert_close(torch.compile(function, backend="gflow")(x), function(x))
    for wrap in (
        lambda m: torch.compile(nn.parallel.DistributedDataParallel(m), backend="gflow"),
        lambda m: nn.parallel.DistributedDataParallel(flow.compile(m)),
    ):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        wrapped = wrap(model)
        wrapped(x).square().mean().backward()
        mine = model.weight.grad.clone()
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        torch.testing.assert_close(mine, model.weight.grad)


def refused(function: Callable[[], Any], *words: str) -> None:
    with pytest.raises(flow.GraphError) as error:
        function()
    missing = [w for w in words if w not in str(error.value)]
    assert not missing, f"{missing} not in {error.value}"


@check
def refusals(rank: int) -> None:
    """What a graph would lose is an error that says what to do."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    x = torch.randn(4, 8)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    here = "two_ranks.py"
    plain = Call(lambda x: model(x))
    refused(lambda: plain(x), here, "DistributedDataParallel", "2 ranks", "gflow.compile")
    zero = ZeroRedundancyOptimizer(nn.Linear(8, 1).parameters(), torch.optim.SGD, lr=0.1)
    refused(lambda: Call(lambda x: x).add_optimizer(zero), here, "ZeroRedundancyOptimizer")
    plain = nn.Linear(8, 1)
    plain.to(flow.nn.graph.GraphModule).set_stage(0)
    refused(lambda: Call(lambda x: plain(x))(x), "set_stage", "set_gradient_accumulation_steps")
    refused(lambda: Call(lambda x: dist.send(x, 0))(x), here, "send")
    refused(lambda: Call(lambda x: dist.barrier())(x), here, "barrier")
    refused(lambda: Call(lambda x: dist.reduce(x, 0))(x), here, "reduce")
    direct = dist.group.WORLD.allreduce
    refused(lambda: Call(lambda x: direct([x]) and x)(x), here, "c10d.allreduce_", "functional")
    sync = nn.SyncBatchNorm(8)
    refused(lambda: Call(lambda x: sync(x))(x), here, "SyncBatchNorm", "all ranks")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,))
    spread = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])
    assert torch.equal(Call(lambda x: x * 2)(spread).full_tensor(), torch.full((4, 8), 2.0))
    parallel = parallelize_module(nn.Linear(8, 2), mesh, ColwiseParallel())
    refused(lambda: Call(lambda x: parallel(x))(x), "use_local_output=False")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sharded = fully_shard(nn.Linear(8, 2))
    refused(lambda: Call(lambda x: sharded(x))(x), here, "fully_shard", "optimizer")
    uneven = fully_shard(nn.Linear(8, 3))
    trained = Call(lambda x: uneven(x))
    trained.add_optimizer(torch.optim.SGD(uneven.parameters(), 0.1))
    refused(lambda: trained(x), here, "fully_shard", "[3, 8]", "2 ranks")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    half = fully_shard(nn.Linear(8, 2), mp_policy=policy)
    refused(lambda: Call(lambda x: half(x))(x), here, "mp_policy", "enable_amp")


def main() -> None:
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    store = dist.FileStore(sys.argv[3], WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    found: dict[str, str | None] = {}
    for label in sys.argv[4:] or CHECKS:
        try:
            CHECKS[label](rank)
            found[label] = None
        except Exception:
            found[label] = traceback.format_exc()
            break  # the ranks are not in step any more
    print(json.dumps(found), flush=True)
    os._exit(0)  # a rank that failed leaves the other waiting


if __name__ == "__main__":
    main()

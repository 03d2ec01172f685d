"""What each of some Gloo ranks runs in tests/test_data_parallel.py: `… RANK WORLD FILE CHECK…`.

Prints one JSON object: for each check what went wrong, or null.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

import gflow as flow
from gflow.compiler.distribution.network import sent
from gflow.dialects.program import CollectiveStep
from gflow.errors import GraphError

CHECKS: dict[str, Callable[[int, int], None]] = {}


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Linear(6, 16),
        nn.BatchNorm1d(16) if norm else nn.LayerNorm(16),
        nn.Tanh(),
        nn.Linear(16, 3),
    ]
    return nn.Sequential(*layers)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
}


def batch(rank: int, step: int, count: int = 8) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(count, 6, generator=g), torch.randn(count, 3, generator=g)


def loss_of(y: Tensor, t: Tensor) -> Tensor:
    return (y - t).square().mean()


def graph_of(
    model: nn.Module,
    optimizer: Any,
    *,
    clip: float = 0.0,
    micro: int = 1,
    scaler: Any = None,
    schedule: Any = None,
    configure: Callable[[Any], None] = lambda config: None,
) -> Any:
    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, **({} if schedule is None else {"lr_sch": schedule}))
            if scaler is not None:
                self.set_grad_scaler(scaler)
            if micro > 1:
                self.config.set_gradient_accumulation_steps(micro)
            configure(self.config)

        def build(self, x: Tensor, t: Tensor) -> Tensor:
            loss = loss_of(self.model(x), t)
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            return loss

    return Train()


def eager_step(
    model: nn.Module, optimizer: Any, x: Tensor, t: Tensor, clip: float = 0.0, micro: int = 1
) -> Tensor:
    optimizer.zero_grad()
    losses = []
    for a, b in zip(x.chunk(micro), t.chunk(micro)):
        loss = loss_of(model(a), b)
        (loss / micro).backward()
        losses.append(loss.detach())
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return torch.stack(losses)


def same(a: nn.Module, b: nn.Module, what: str, tolerance: float = 1e-6) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(
            x, y, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{what} {n}: {m}"
        )


@check
def like_ddp(rank: int, world: int) -> None:
    """Steps of a graph around a data-parallel module are those of eager DDP; ZeRO of each stage makes the same, bit for
    bit where nothing is added over parts (norms for clipping are), with what it divides in pieces."""
    for name, options, stages in (
        ("sgd", {}, (0, 1, 2, 3)),
        ("adamw", {}, (0, 3)),
        ("adamw", {"clip": 0.05}, (2,)),
        ("adamw", {"micro": 2}, (3,)),
    ):
        theirs = net()
        b = DDP(theirs)
        eager = OPTIMIZERS[name](b.parameters())
        for step in range(4):
            eager_step(b, eager, *batch(rank, step), **options)
        first: list[Tensor] = []
        for stage in stages:
            label = f"{name} {options} stage {stage}"
            ours = net()
            a = DDP(ours)
            mine = OPTIMIZERS[name](a.parameters())
            train = graph_of(a, mine, configure=zero(stage), **options)
            for step in range(4):
                train(*batch(rank, step))
            assert len(list(train._state.plans)) <= 2, f"{label}: compiled again"
            in_pieces(stage, mine, ours, label)
            same(ours, theirs, label)  # state_dict() gathers
            same_state(mine, eager, label)
            now = [p.detach().clone() for p in ours.parameters()]
            first = first or now
            assert all(map(torch.equal, first, now)), f"{label}: other bits"
        # what was gathered is in pieces again
        train(*batch(rank, 9))
        in_pieces(stage, mine, ours, label)
        eager_step(b, eager, *batch(rank, 9), **options)
        same(ours, theirs, f"{label}, after state_dict()")


def zero(stage: int, **more: Any) -> Callable[[Any], None]:
    """Switch on a stage of ZeRO, for parameters of all sizes."""

    def configure(config: Any) -> None:
        if stage:
            config.enable_zero(stage=stage, shard_min_size=1, **more)

    return configure


def in_pieces(stage: int, optimizer: torch.optim.Optimizer, model: nn.Module, label: str) -> None:
    """What whole tensors keep: one element each, of those that ranks have in pieces."""
    moments = [v for e in optimizer.state.values() for v in e.values() if v.numel() > 1]
    for divided, tensors in ((stage > 0, moments), (stage > 2, [*model.parameters()])):
        kept = [t.untyped_storage().nbytes() for t in tensors]
        wanted = [t.element_size() * (1 if divided else t.numel()) for t in tensors]
        assert kept == wanted, (label, kept)


def same_state(
    mine: torch.optim.Optimizer, eager: torch.optim.Optimizer, label: str, tolerance: float = 1e-6
) -> None:
    """`state_dict()` gathers."""
    states = [o.state_dict()["state"] for o in (eager, mine)]
    assert [*states[0]] == [*states[1]]
    for key, wanted in states[0].items():
        for entry, value in wanted.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(
                    states[1][key][entry],
                    value,
                    rtol=tolerance,
                    atol=tolerance,
                    msg=partial("{} state {} {}: {}".format, label, key, entry),
                )


@check
def whole_again(rank: int, world: int) -> None:
    """Parameters in pieces are whole for who reads them: eager calls, other graphs, loading; and `unshard()`."""
    ours, theirs = net(), net()
    a = DDP(ours)
    train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1), configure=zero(3))
    plain = graph_of(DDP(theirs), torch.optim.SGD(theirs.parameters(), 0.1))
    x, t = batch(rank, 0)
    evaluate = flow.nn.Graph.trace(lambda x: ours(x))

    def divided() -> bool:
        return all(p.untyped_storage().nbytes() == p.element_size() for p in ours.parameters())

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the hooks that gather parameters are no change by build()
        train(x, t)
    plain(x, t)
    for read in (
        lambda: torch.testing.assert_close(ours(x), theirs(x)),
        lambda: torch.testing.assert_close(ours[0](x), theirs[0](x)),
        lambda: torch.testing.assert_close(evaluate(x), theirs(x)),
        lambda: ours.load_state_dict({"0.bias": theirs[0].bias}, strict=False),
        lambda: flow.distributed.unshard(ours),
    ):
        train(x, t)
        plain(x, t)
        assert divided()
        with torch.no_grad():
            read()
    assert not divided()
    same(ours, theirs, "read in between", 0.0)
    train(x[: 4 + rank], t[: 4 + rank])  # traced again while parameters are divided, by two sizes
    plain(x[: 4 + rank], t[: 4 + rank])
    same(ours, theirs, "traced again", 0.0)
    train(x, t)
    plain(x, t)
    for copied in (lambda: copy.deepcopy(ours), lambda: torch.save(ours, io.BytesIO())):
        with pytest.raises(RuntimeError, match="unshard"):
            copied()
    for write in (ours[0].bias.data.zero_, lambda: nn.init.ones_(ours[0].weight)):
        assert divided()
        write()  # these do not refuse to write to what has no memory
        with pytest.raises(RuntimeError, match="unshard"):
            train(x, t)
        train(x, t)
        plain(x, t)
    write()
    with pytest.raises(RuntimeError, match="unshard"):
        ours.state_dict()
    same(ours, theirs, "written to in pieces", 0.0)
    same(copy.deepcopy(ours), theirs, "copied", 0.0)


@check
def batch_norm(rank: int, world: int) -> None:
    """Statistics are each rank's own in the forward, and rank 0's at the start of the next."""
    for broadcast in (True, False):
        ours, theirs = net(norm=True), net(norm=True)
        a, b = DDP(ours, broadcast_buffers=broadcast), DDP(theirs, broadcast_buffers=broadcast)
        train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1))
        eager = torch.optim.SGD(b.parameters(), 0.1)
        for step in range(3):
            x, t = batch(rank, step)
            train(x, t)
            eager_step(b, eager, x, t)
        same(ours, theirs, f"broadcast {broadcast}")


@check
def amp_and_scaler(rank: int, world: int) -> None:
    """A step that overflows on one rank is skipped on all."""
    ours = net()
    a = DDP(ours)
    scaler = flow.amp.GradScaler(init_scale=2.0**10, growth_interval=1000)
    train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1), scaler=scaler)
    theirs = net()
    b = DDP(theirs)
    eager, scale = (
        torch.optim.SGD(b.parameters(), 0.1),
        torch.amp.GradScaler("cpu", init_scale=2.0**10),
    )
    for step in range(3):
        x, t = batch(rank, step)
        if step == 1 and rank == 0:
            x[0, 0] = float("inf")
        train(x, t)
        eager.zero_grad()
        scale.scale(loss_of(b(x), t)).backward()
        scale.step(eager)
        scale.update()
        same(ours, theirs, f"step {step}")


@check
def halves(rank: int, world: int) -> None:
    """Mixed precision: ZeRO 3 gives the bits of plain data parallelism, and gathers halves."""
    found = []
    for stage in (0, 3):
        model = net()
        a = DDP(model)

        def configure(config: Any, stage: int = stage) -> None:
            config.enable_amp(True, dtype=torch.bfloat16)
            zero(stage)(config)

        train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1), configure=configure)
        for step in range(2):
            train(*batch(rank, step))
        found.append(model.state_dict())
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name
    (plan,) = train._checked().plans
    steps = [s for s in plan.compiled.program.steps if isinstance(s, CollectiveStep)]
    gathered = {s.output.type.dtype for s in steps if s.kind == "all_gather" and s.output}
    assert "bf16" in gathered, gathered


def wide_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 64),
        nn.LayerNorm(64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 3),
    )


@check
def amp_beside_autocast(rank: int, world: int) -> None:
    """Mixed precision over ranks is as far from a float64 step over all examples as eager DDP under autocast."""
    start = [p.detach().double() for p in wide_net().parameters()]
    batches = [[batch(r, step) for r in range(world)] for step in range(3)]

    def changes(model: nn.Module) -> Tensor:
        found = [v.double() for v in model.state_dict().values()]
        return torch.cat([(a - b).flatten() for a, b in zip(found, start)])

    def far(model: nn.Module) -> float:
        return float((changes(model) - exact).norm() / exact.norm())

    for clip in (0.0, 0.05):
        oracle = wide_net().double()
        whole = torch.optim.SGD(oracle.parameters(), 0.05)
        for each in batches:
            x, t = (torch.cat(parts).double() for parts in zip(*each))
            eager_step(oracle, whole, x, t, clip)
        exact = changes(oracle)
        theirs = wide_net()
        b = DDP(theirs)
        eager = torch.optim.SGD(b.parameters(), 0.05)
        for each in batches:
            with torch.autocast("cpu", torch.bfloat16):
                eager_step(b, eager, *each[rank], clip)
        for stage in (0, 2, 3):
            ours = wide_net()
            a = DDP(ours)

            def configure(config: Any, stage: int = stage) -> None:
                config.enable_amp(True, dtype=torch.bfloat16)
                zero(stage)(config)

            train = graph_of(
                a, torch.optim.SGD(a.parameters(), 0.05), clip=clip, configure=configure
            )
            for each in batches:
                train(*each[rank])
            (wide,) = (p for p in ours.parameters() if p.shape == (64, 64))
            assert (wide.untyped_storage().nbytes() == 4) is (stage > 0), "float32 in pieces"
            errors = far(ours), far(theirs)
            assert 1e-5 < errors[0] < 2 * errors[1] < 0.1, (clip, stage, errors)


@check
def schedule(rank: int, world: int) -> None:
    """Learning rates that change from step to step."""
    ours, theirs = net(), net()
    a, b = DDP(ours), DDP(theirs)
    mine, eager = torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)
    steps = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (mine, eager)]
    train = graph_of(a, mine, schedule=steps[0])
    for step in range(3):
        x, t = batch(rank, step)
        train(x, t)
        eager_step(b, eager, x, t)
        steps[1].step()
    same(ours, theirs, "schedule")


@check
def other_shapes(rank: int, world: int) -> None:
    """A rank that sees other shapes makes the same collectives: gradients have the parameters' shapes."""
    ours, theirs = net(), net()
    a, b = DDP(ours), DDP(theirs)
    train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1))
    eager = torch.optim.SGD(b.parameters(), 0.1)
    x, t = batch(rank, 0, 4 + rank)
    train(x, t)
    eager_step(b, eager, x, t)
    same(ours, theirs, "other shapes")


def even_net() -> nn.Module:
    """First dimensions that two ranks share."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))


@check
def whole_fsdp_steps(rank: int, world: int) -> None:
    """A function with a whole step of modules of `fully_shard` through `gflow.compile`."""
    from torch.distributed.fsdp import fully_shard

    losses = []
    for compiled in (False, True):
        model = fully_shard(even_net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = flow.compile(step) if compiled else step
        losses.append([call(batch(rank, n)[0]) for n in range(3)])
    torch.testing.assert_close(*losses)


@check
def like_fsdp(rank: int, world: int) -> None:
    """Modules of `fully_shard` train as ZeRO stage 3: parameters and state stay the DTensors that they are."""
    from torch.distributed.fsdp import fully_shard

    def sharded() -> nn.Module:
        model = even_net()
        model[0].bias.requires_grad_(False)
        fully_shard(model[0])
        return fully_shard(model)

    def some(step: int) -> tuple[Tensor, Tensor]:
        x, _ = batch(rank, step)
        return x, torch.cat([x, x], 1)[:, :4]

    for name, options in (("sgd", {}), ("adamw", {"micro": 2})):
        ours, theirs = sharded(), sharded()
        mine, eager = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
        train = graph_of(ours, mine, **options)
        for step in range(3):
            x, t = some(step)
            train(x, t)
            eager_step(theirs, eager, x, t, **options)
            with torch.no_grad():
                torch.testing.assert_close(ours(x), theirs(x))  # hooks are on, and leave some whole
        assert len(list(train._state.plans)) == 1, "compiled again"
        ours.reshard(), theirs.reshard()
        for (key, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert type(p.data) is type(q.data) is DTensor, key
            told = partial("{} {}: {}".format, name, key)
            torch.testing.assert_close(p.to_local(), q.to_local(), rtol=1e-6, atol=1e-6, msg=told)
        for p, q in zip(ours.parameters(), theirs.parameters()):
            for entry, value in eager.state[q].items():
                if isinstance(value, DTensor):
                    got = mine.state[p][entry].to_local()
                    torch.testing.assert_close(got, value.to_local(), rtol=1e-6, atol=1e-6)
        (plan,) = train._state.plans
        assert all(
            a.part
            for a in plan.compiled.program.arguments
            if a.role in ("parameter", "optimizer_state") and a.type.shape
        )
    ours.eval()
    evaluate = flow.nn.Graph.trace(lambda x: ours(x))
    x, _ = some(9)
    with torch.no_grad():
        torch.testing.assert_close(evaluate(x), theirs(x))


@check
def checkpoint(rank: int, world: int) -> None:
    """Each rank writes its pieces; a graph goes on from them, with the same bits."""
    folder = Path(sys.argv[3]).parent
    models = [net(), net()]
    for p in models[1].parameters():
        nn.init.zeros_(p)
    made = [DDP(m) for m in models]
    trains = [
        graph_of(m, OPTIMIZERS["adamw"](m.parameters()), configure=zero(3 - 2 * n))
        for n, m in enumerate(made)
    ]
    for step in range(2):
        trains[0](*batch(rank, step))
    flow.distributed.save_checkpoint(trains[0], folder / "sharded")
    assert all(p.untyped_storage().nbytes() == 4 for p in models[0].parameters()), "gathered"
    flow.distributed.load_checkpoint(trains[1], folder / "sharded")
    for train in trains:
        train(*batch(rank, 2))
    same(models[1], models[0], "gone on", 0.0)
    whole_model = net()  # all stages give the bits of data parallelism
    data_parallel = graph_of(DDP(whole_model), OPTIMIZERS["adamw"](whole_model.parameters()))
    for step in range(3):
        data_parallel(*batch(rank, step))
    same(models[1], whole_model, "beside data parallelism", 0.0)
    flow.distributed.save_checkpoint(trains[0], folder / "sharded")
    whole = trains[0].state_dict()
    if rank == 0:
        flow.save(whole, folder / "whole.safetensors")
        assert len([*(folder / "sharded").iterdir()]) == 2, "the old one is gone"
    dist.barrier()


@check
def compiled_once(rank: int, world: int) -> None:
    """One rank compiles, the others take what it has made."""
    import gflow.compiler

    compile_programs, calls = gflow.compiler.compile_programs, [0]

    def counted(*args: Any) -> Any:
        calls[0] += 1
        time.sleep(0.7)  # so that all are there
        return compile_programs(*args)

    gflow.compiler.compile_programs = counted
    try:
        torch.manual_seed(0)
        a = DDP(nn.Sequential(nn.Linear(6, 17), nn.Linear(17, 3)))  # no other check's program
        train = graph_of(a, torch.optim.SGD(a.parameters(), 0.3))
        train(*batch(rank, 0))
        count = torch.tensor(calls)
        dist.all_reduce(count)
        assert int(count) == 1, count
    finally:
        gflow.compiler.compile_programs = compile_programs


@check
def buckets(rank: int, world: int) -> None:
    """A module's own `bucket_cap_mb` says how much is sent as one, under ZeRO too."""
    for stage in (0, 3):
        counts = []
        for options in ({}, {"bucket_cap_mb": 300 / (1 << 20)}, {"bucket_cap_mb": 1 / (1 << 20)}):
            a = DDP(net(), **options)
            train = graph_of(
                a,
                torch.optim.SGD(a.parameters(), 0.1),
                configure=zero(stage),
            )
            train(*batch(rank, 0))
            (plan,) = train._checked().plans
            steps = [s for s in plan.compiled.program.steps if isinstance(s, CollectiveStep)]
            counts.append(sum(s.kind in ("all_reduce", "reduce_scatter") for s in steps))
            places = [
                source
                for s in train.profile(*batch(rank, 0), rounds=1).steps
                for source, _ in s.shares
            ]
            assert all(source.phase for source in places), (stage, options)
        # of 64, 192, 64, 64, 384, 12 bytes
        assert counts[0] == 1, (stage, counts)
        assert counts[0] < counts[1] < counts[2] == len(list(a.parameters())), (stage, counts)


#: bytes of the heading that Gloo's TCP transport writes before what it sends
_HEADING = 48


@check
def on_the_wire(rank: int, world: int) -> None:
    """A rank writes to its sockets what the program's collectives are said to send, and headings; buckets are of a size
    from which on sums go by messages."""

    def written() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))

    if not Path("/proc/self/io").exists():
        return  # not on Linux
    for stage in (0, 2, 3):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(768, 768, bias=False) for _ in range(2)))
        a = DDP(model)
        train = graph_of(a, torch.optim.SGD(a.parameters(), 0.1), configure=zero(stage))
        x = torch.randn(4, 768)
        for _ in range(2):
            train(x, x)
        dist.barrier()
        before = written()
        train(x, x)
        found = written() - before
        (plan,) = train._checked().plans
        steps = [s for s in plan.compiled.program.steps if isinstance(s, CollectiveStep)]
        wholes = [s.output if s.kind == "all_gather" else s.input for s in steps]
        told = sum(sent(s.kind, world, w.type.nbytes) for s, w in zip(steps, wholes) if w)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        read_again = size // 2 if stage == 3 else 0  # the backward reads the second weight alone
        assert told == (2 * size + read_again) * (world - 1) // world, (stage, told)
        assert found >= told, (stage, found, told)
        assert (found - told) % _HEADING == 0, (stage, found - told)
        assert found - told < 0.01 * told, (stage, found - told)


@check
def refused(rank: int, world: int) -> None:
    """What a graph would lose is an error that says so."""
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    def fails(function: Callable[[], Any], *words: str) -> None:
        with pytest.raises(GraphError) as found:
            function()
        missing = [w for w in words if w not in str(found.value)]
        assert not missing, f"{missing} not in {found.value}"

    plain = net()
    zero = graph_of(
        plain, torch.optim.SGD(plain.parameters(), 0.1), configure=lambda c: c.enable_zero()
    )
    fails(lambda: zero(*batch(rank, 0)), "enable_zero", "DistributedDataParallel")
    model = DDP(net())
    model.register_comm_hook(None, lambda state, bucket: None)  # type: ignore[arg-type]
    fails(
        lambda: graph_of(model, torch.optim.SGD(model.parameters(), 0.1))(*batch(rank, 0)),
        "communication hook",
    )
    replicated = replicate(net())
    fails(
        lambda: graph_of(replicated, torch.optim.SGD(replicated.parameters(), 0.1))(
            *batch(rank, 0)
        ),
        "replicate()", "DistributedDataParallel",
    )  # fmt: skip

    class Own(DefaultReduceScatter):
        """A reduce-scatter of the author's."""

    divided: Any = fully_shard(even_net())
    divided.set_custom_reduce_scatter(Own())
    fails(
        lambda: graph_of(divided, torch.optim.SGD(divided.parameters(), 0.1))(*batch(rank, 0)),
        "set_custom_reduce_scatter",
    )
    model = DDP(net())
    train = graph_of(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):  # before the first call, and between calls
        with model.no_sync():
            fails(lambda: train(*batch(rank, 0)), "no_sync", "set_gradient_accumulation_steps")
        before = [p.clone() for p in model.parameters()]
        train(*batch(rank, 0))
        assert not all(map(torch.equal, before, model.parameters()))


class Branches(nn.Module):
    """Layers of one size, of which a rank uses some, or in an order of its own."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.order = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), order
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for n in self.order:
            x = torch.tanh(self.layers[n](x))
        return self.head(x)


@check
def other_parameters(rank: int, world: int) -> None:
    """Ranks whose collectives have equal sizes and send other parameters, or in another order, do not run."""
    for stage, orders in ((0, [(0,), (1,)]), (2, [(0, 1), (1, 0)]), (3, [(0, 1), (1, 0)])):
        model = DDP(Branches(orders[rank % 2]))
        train = graph_of(model, torch.optim.SGD(model.parameters(), 0.1), configure=zero(stage))
        with pytest.raises(RuntimeError, match="use the same parameters in the same order"):
            train(*batch(rank, 0))


def run_checks(checks: dict[str, Callable[[int, int], None]]) -> None:
    """Run what the command line names, and print what went wrong."""
    rank, world, path, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=int(rank), world_size=int(world), init_method=f"file://{path}"
    )
    found: dict[str, str | None] = {}
    for name in names:
        try:
            checks[name](int(rank), int(world))
            found[name] = None
        except BaseException:
            found[name] = traceback.format_exc()
            break
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    run_checks(CHECKS)

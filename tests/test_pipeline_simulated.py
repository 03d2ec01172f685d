"""Steps of pipelines beside eager float64 of one process, all ranks in this process (`pipeline_simulator`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pytest
import torch
from pipeline_ranks import Net, Train, batch, eager_step, stage
from pipeline_simulator import batches, simulated
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import gflow as flow

Make = Callable[[Any], Any]


def sgd(groups: Any) -> Any:
    return torch.optim.SGD(groups, 0.1, momentum=0.9)


def adamw(groups: Any) -> Any:
    return torch.optim.AdamW(groups, 0.01)


def clipping(params: Any, norm: float, kind: float = 2.0) -> list[dict[str, Any]]:
    return [{"params": list(params), "clip_grad_max_norm": norm, "clip_grad_norm_type": kind}]


@pytest.mark.parametrize(
    ("stages", "world", "make", "kind"),
    [(2, 2, sgd, 2.0), (4, 4, adamw, 1.0), (4, 2, sgd, float("inf"))],
)
def test_clipping_by_the_norm_of_all_gradients(
    stages: int, world: int, make: Make, kind: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scale is of all stages; the exchange is one all-reduce of a number for each parameter."""
    model = Net(max(stages, 3)).double()
    eager = copy.deepcopy(model)
    stage(model, stages)
    theirs, mine = make(eager.parameters()), make(clipping(model.parameters(), 0.05, kind))
    with simulated(world, monkeypatch) as made:
        train = Train(model, mine, 4)
        for step in range(3):
            x, t = (a.double() for a in batch(step))
            train(x, t)
            theirs.zero_grad()
            for a, b in zip(x.chunk(4), t.chunk(4)):
                ((eager(a) - b).square().mean() / 4).backward()
            norm = nn.utils.clip_grad_norm_(eager.parameters(), 0.05, kind)
            assert norm > 0.05, "nothing is clipped"
            theirs.step()
    (run,) = made
    assert {tuple(t.made) for t in run.traffic} == {("all_reduce",)}
    same(model, eager, 1e-12)


def same(ours: nn.Module, theirs: nn.Module, tolerance: float) -> None:
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        told = partial("{}: {}".format, name)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=told)


@pytest.mark.parametrize(("stages", "world"), [(2, 2), (4, 2)])
def test_gradient_scaler(stages: int, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose gradients overflow in one stage is skipped in all of them; the scale is the same on all ranks."""
    model = Net(max(stages, 3))
    eager = copy.deepcopy(model)
    stage(model, stages)
    theirs, mine = adamw(eager.parameters()), adamw(clipping(model.parameters(), 0.05))
    scalers = [
        make(init_scale=2.0**10, growth_interval=2)
        for make in (flow.amp.GradScaler, partial(torch.amp.GradScaler, "cpu"))
    ]
    with simulated(world, monkeypatch) as made:
        train = Train(model, mine, 4)
        train.set_grad_scaler(scalers[0])
        for step in range(4):
            x, t = batch(step)
            if step == 2:
                t[0, 0] = 1e38
            train(x, t)
            theirs.zero_grad()
            for a, b in zip(x.chunk(4), t.chunk(4)):
                scalers[1].scale((eager(a) - b).square().mean() / 4).backward()
            scalers[1].unscale_(theirs)
            nn.utils.clip_grad_norm_(eager.parameters(), 0.05)
            scalers[1].step(theirs)
            scalers[1].update()
            assert scalers[0].get_scale() == scalers[1].get_scale(), step
            same(model, eager, 1e-5)
    assert scalers[0].get_scale() == 2.0**10
    states = [o.state_dict()["state"] for o in (mine, theirs)]
    for key, entry in states[1].items():
        for name, value in entry.items():
            torch.testing.assert_close(states[0][key][name], value, rtol=1e-5, atol=1e-5)
    owners = {i.name: made[0].stages.owners.get(i.value) for i in made[0].trace.inputs}
    assert owners["scaler.scale"] is owners["optimizer.0.model.last.weight.step"] is None
    assert owners["optimizer.0.model.last.weight.exp_avg"] == (stages - 1) % world


ZERO = "builtin.module(func.func(gflow-zero-1,gflow-zero-2))"
ZERO_3 = "builtin.module(func.func(gflow-zero-1{min-size=20},gflow-zero-3{min-size=20}))"
PLAIN = "builtin.module(func.func(gflow-decompose-all-reduce{min-size=1}))"


@pytest.mark.parametrize(
    ("stages", "axes", "make", "passes"),
    [
        (2, ("pp", "dp"), sgd, PLAIN),
        (4, ("dp", "pp"), adamw, ZERO.replace("zero-1", "zero-1{min-size=1}")),
        (2, ("dp", "pp"), sgd, ZERO_3),
    ],
)
def test_several_pipelines(
    stages: int, axes: tuple[str, str], make: Make, passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pipelines, each with its own half of the batch, make the step of eager float64 on the whole batch: clipping,
    a scaler whose gradients overflow in one stage of one pipeline, and ZeRO in the stages."""
    model = Net(max(stages, 3)).double()
    model.first = model.first[
        0
    ]  # without batch norm, whose statistics are those of a pipeline's half
    eager = copy.deepcopy(model)
    stage(model, stages)
    with simulated(4, monkeypatch, passes) as made:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
        parallel = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        theirs, mine = make(eager.parameters()), make(clipping(parallel.parameters(), 0.05))
        scalers = [
            made_by(init_scale=2.0**10, growth_interval=2)
            for made_by in (flow.amp.GradScaler, partial(torch.amp.GradScaler, "cpu"))
        ]
        train = Train(parallel, mine, 4)
        train.set_grad_scaler(scalers[0])
        for step in range(4):
            x, t = (a.double() for a in batch(step))
            if step == 2:
                t[9, 0] = float("inf")
            with batches([*zip(x.chunk(2), t.chunk(2))]) as first:
                found, _ = train(*first)
            theirs.zero_grad()
            losses = []
            for a, b in zip(x.chunk(8), t.chunk(8)):
                losses.append((eager(a) - b).square().mean())
                scalers[1].scale(losses[-1] / 8).backward()
            torch.testing.assert_close(found, torch.stack(losses[:4]).mean())
            scalers[1].unscale_(theirs)
            norm = nn.utils.clip_grad_norm_(eager.parameters(), 0.05)
            assert norm > 0.05 or step == 2, "nothing is clipped"
            scalers[1].step(theirs)
            scalers[1].update()
            assert scalers[0].get_scale() == scalers[1].get_scale(), step
            same(parallel.module, eager, 1e-12)
    (run,) = made
    assert {a: run.stages.mesh.axes[a] for a in axes} == {"pp": 2, "dp": 2}
    assert [*run.stages.mesh.axes] == [*axes]
    assert all({"reduce_scatter", "all_reduce"} <= {*t.made} for t in run.traffic)
    assert bool(run.pieces) == ("zero" in passes)
    assert ("model.module.last.weight" in run.pieces) == (passes == ZERO_3), [*run.pieces]


def test_buffers_of_several_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pipeline's micro-batches begin with the buffers of the first one (`broadcast_buffers`), as each
    micro-batch of a data-parallel graph does."""
    model = Net(3).double()
    eager = copy.deepcopy(model)
    stage(model, 2)
    with simulated(4, monkeypatch) as made:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        parallel = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        train = Train(parallel, sgd(parallel.parameters()), 4)
        theirs = sgd(eager.parameters())
        for step in range(2):
            x, t = (a.double() for a in batch(step))
            with batches([*zip(x.chunk(2), t.chunk(2))]) as first:
                train(*first)
            theirs.zero_grad()
            for a, b in zip(
                zip(x[:8].chunk(4), t[:8].chunk(4)), zip(x[8:].chunk(4), t[8:].chunk(4))
            ):
                second = copy.deepcopy(eager)  # the other pipeline, with the first one's buffers
                ((eager(a[0]) - a[1]).square().mean() / 8).backward()
                grads = torch.autograd.grad(
                    (second(b[0]) - b[1]).square().mean() / 8, [*second.parameters()]
                )
                for p, g in zip(eager.parameters(), grads):
                    p.grad += g
            theirs.step()
        same(parallel.module, eager, 1e-12)
    (run,) = made
    kinds = {p.kind: [str(op.func) for op in p.trace.ops] for p in run.stages.parts if not p.stage}
    assert any("broadcast" in name for name in kinds["F"])
    assert not any("broadcast" in name for name in kinds["B"])


class Whole(torch.optim.SGD):
    """Reads all gradients as one tensor, or the norm of all momenta before it changes them."""

    def __init__(self, params: Any, what: str) -> None:
        super().__init__(params, 0.1)
        self.what = what
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum"] = torch.ones_like(p)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        each = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        momenta = [self.state[p]["momentum"] for p in each]
        if self.what == "gradients":
            norm = torch.cat([p.grad.flatten() for p in each]).norm()
        else:
            norm = torch.stack([m.norm() for m in momenta]).norm()
        for p, m in zip(each, momenta):
            m.mul_(0.9).add_(p.grad)
            p.sub_(m / norm)


def test_optimizers_that_read_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that one rank keeps is read there; small tensors are exchanged, large ones refused."""
    for what in ("momenta", "gradients"):
        model = Net(3)
        eager = copy.deepcopy(model)
        stage(model, 2)
        theirs, mine = Whole(eager.parameters(), what), Whole(model.parameters(), what)
        with simulated(2, monkeypatch):
            train = Train(model, mine, 4)
            for step in range(2):
                train(*batch(step))
                eager_step(eager, theirs, *batch(step), 4)
            same(model, eager, 1e-5)
    model = Net(3)
    model.last = nn.Sequential(nn.Linear(12, 512), nn.Linear(512, 3))
    stage(model, 2)
    with simulated(2, monkeypatch), pytest.raises(flow.GraphError, match="single numbers of other"):
        Train(model, Whole(model.parameters(), "gradients"), 4)(*batch(0))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(width), nn.Linear(width, 4 * width)
        self.inner = nn.Sequential(nn.GELU(), nn.Linear(4 * width, 4 * width), nn.Tanh())
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.inner(self.up(self.norm(x))))


@pytest.mark.parametrize("marked", [("[0-9]", "*.inner"), ("1", "*.inner")])
def test_checkpointing(marked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are those of eager; between forward and backward a stage keeps what its marked calls read."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(6) for _ in range(4))).double()
    eager = copy.deepcopy(model)
    kept = []
    for checkpointed in (False, True):
        again = copy.deepcopy(model)
        reference = copy.deepcopy(eager)
        for n, block in enumerate(again):
            block.to(flow.nn.graph.GraphModule).set_stage(n // 2)
        for name, module in again.named_modules():
            if checkpointed and name and any(fnmatch(name, m) for m in marked):
                module.to(flow.nn.graph.GraphModule).activation_checkpointing = True
        theirs, mine = sgd(reference.parameters()), sgd(clipping(again.parameters(), 0.05))
        with simulated(2, monkeypatch) as made:
            train = Train(again, mine, 4)
            for step in range(2):
                x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).double()
                train(x, x.flip(1))
                eager_step(reference, theirs, x, x.flip(1), 4, 0.05)
            same(again, reference, 1e-12)
        kept.append(made[0].kept)
        weights = {p.shape.numel() for p in model.parameters() if p.dim() == 2}
        passed = {math.prod(v.shape) for p in made[0].stages.parts for v in p.made.values()}
        assert weights.isdisjoint(passed), "each part views its weights itself"
    rows, width, wide = 4, 6, 24
    inner = 2 * 3 * rows * wide * 8  # of the two blocks of a stage
    assert kept[1] < kept[0] - inner, "what the inner calls make is computed again"
    if marked[0] == "[0-9]":  # blocks' inputs, and what batch norms make of their statistics
        assert kept[1] <= 3 * rows * width * 8 + (4 * 4 * width + 1) * 8


class Turned(nn.Module):
    """Gives views of what it computes: a transposed one, and a slice expanded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.bias = nn.Linear(width, 2 * width), nn.Parameter(torch.ones(2 * width))
        self.made: Callable[[Tensor], Tensor] = torch.t

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x).tanh()
        return self.made(y), y[:, :1].expand(-1, 3) + self.bias[:3]


class Taking(nn.Module):
    def __init__(self, width: int, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.second, self.read = nn.Linear(2 * width, width), read

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        return self.second(self.read(x[0]) + x[1].sum())


def in_stages(model: nn.Sequential) -> None:
    for n, module in enumerate(model):
        module.to(flow.nn.graph.GraphModule).set_stage(n)


@pytest.mark.parametrize(
    "read", [lambda y: y.t(), lambda y: y.t().reshape(2, -1, 12).flip(0).reshape(-1, 12)]
)
def test_views_of_values_of_other_stages(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Turned(6), Taking(6, read)).double()
    eager = copy.deepcopy(model)
    in_stages(model)
    theirs, mine = sgd(eager.parameters()), sgd(model.parameters())
    with simulated(2, monkeypatch):
        train = Train(model, mine, 4)
        for step in range(2):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).double()
            train(x, x.flip(1))
            eager_step(eager, theirs, x, x.flip(1), 4)
    same(model, eager, 1e-12)


@pytest.mark.parametrize("made", [lambda y: y[:, 1:7], lambda y: y[:, 1:7].t()])
def test_memory_of_values_of_other_stages_is_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages pass tensors in row-major order, in which `as_strided` would read other elements."""
    model = nn.Sequential(Turned(6), Taking(6, lambda y: y.as_strided((4, 12), (12, 1), 0)))
    model[0].made = made
    in_stages(model)
    x = torch.randn(16, 6)
    with simulated(2, monkeypatch), pytest.raises(flow.GraphError, match=r"Call .contiguous\(\)"):
        Train(model, sgd(model.parameters()), 4)(x, x)

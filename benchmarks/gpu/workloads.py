"""One step of a model by each peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gflow
from benchmarks.gpu.graphs import for_setting
from benchmarks.gpu.rows.own_kernels import what_ran
from benchmarks.gpu.setting import Setting
from benchmarks.workloads.cuda_steps import MODELS, Model
from benchmarks.workloads.items import adamw, loss_of, sgd
from benchmarks.workloads.networks import Decoder, ResidualBlock

MODES = ("training", "inference")


def models(setting: Setting) -> dict[str, Model]:
    """The models by name; where an interpreter works, two that are tiny."""
    return _TINY if setting.small else MODELS


def _tiny_convnet() -> nn.Module:
    return nn.Sequential(ResidualBlock(3, 10, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


_TINY = {
    "convnet": Model(
        "convnet", "a block of a ResNet", _tiny_convnet,
        lambda: (torch.empty(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)), sgd,
    ),
    "decoder": Model(
        "decoder", "a layer of a decoder, bfloat16", lambda: Decoder(1, 32, 2, 61, 17),
        lambda: (torch.zeros(2, 17, dtype=torch.int64),) * 2, adamw, torch.bfloat16,
    ),
}  # fmt: skip


def batch_of(setting: Setting, model: Model, module: nn.Module) -> tuple[Tensor, ...]:
    """Inputs and target with random contents; every token of a vocabulary is as likely."""
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    random = torch.Generator().manual_seed(1)
    found = []
    for t in model.inputs():
        if t.dtype == torch.int64:
            made = torch.randint(tables[0] if tables else 10, t.shape, generator=random)
        elif t.is_floating_point():
            made = torch.randn(t.shape, generator=random).to(model.dtype)
        else:
            made = t
        if made.dim() == 4:
            made = made.to(memory_format=torch.channels_last)
        found.append(made.to(setting.where))
    return tuple(found)


@dataclass(frozen=True)
class Step:
    """run: takes a step, and gives the loss (or a number that tells of the output), which is the caller's to keep.
    compared: after the first step, what shows that it was right: the optimizer's first moments, by parameter, which
    the gradients are a factor of; or the output. ran: what does the work, as data."""

    run: Callable[[], Tensor]
    compared: Callable[[], list[Tensor]]
    ran: Callable[[], dict[str, Any]]


def make_step(setting: Setting, name: str, mode: str, peer: str) -> Step:
    """A step of a model by a peer.

    peer: "gflow", "own kernels" (without libraries in races), "eager", "compile", "max-autotune"; "exact" and
    "float32" are eager in float64 and float32 without mixed precision.
    """
    model = models(setting)[name]
    training = mode == "training"
    torch.manual_seed(0)
    module = model.make().to(setting.where, model.dtype).train(training)
    if any(p.dim() == 4 for p in module.parameters()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = batch_of(setting, model, module)
    if peer in ("gflow", "own kernels"):
        return _gflow(setting, model, module, batch, training, libraries=peer == "gflow")
    if peer in WIDE:
        module = module.to(WIDE[peer])
        batch = tuple(t.to(WIDE[peer]) if t.is_floating_point() else t for t in batch)
    mixed = model.amp if peer not in WIDE else None
    options: dict[str, Any] = {"mode": "max-autotune"} if peer == "max-autotune" else {}
    compiled = peer in ("compile", "max-autotune")
    wrap = torch.compile if compiled else (lambda f, **_: f)
    amp = torch.autocast(setting.where.type, dtype=mixed, enabled=mixed is not None)

    def forward() -> Tensor:
        with amp:
            return module(*batch[:-1])

    def ran() -> dict[str, Any]:
        return {"kind": KINDS.get(peer, peer), **(_compiled() if compiled else {})}

    def begin() -> None:
        if compiled:  # results of CUDA graphs are overwritten from here on
            torch.compiler.cudagraph_mark_step_begin()

    if not training:
        run = wrap(forward, **options)

        def infer() -> Tensor:
            begin()
            with torch.no_grad():
                return run().float().mean()

        def output() -> list[Tensor]:
            begin()
            with torch.no_grad():
                return _sampled(run())

        return Step(infer, output, ran)
    optimizer = model.optimizer(module)
    loss_and_forward = wrap(lambda: loss_of(_wide(forward()), batch[-1]), **options)
    update = wrap(optimizer.step)

    def step() -> Tensor:
        begin()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_and_forward()
        value = loss.detach().clone()  # at once: the loss lies in memory of a CUDA graph
        loss.backward()
        update()
        return value

    return Step(step, partial(_moments, module, [optimizer]), ran)


WIDE = {"exact": torch.float64, "float32": torch.float32}
#: what rows call peers
KINDS = {"exact": "float64"}


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _moments(module: nn.Module, optimizers: Sequence[Any]) -> list[Tensor]:
    state = {p: values for optimizer in optimizers for p, values in optimizer.state.items()}
    names = ("exp_avg", "momentum_buffer")
    return [state[p][n] for p in module.parameters() for n in names if n in state.get(p, {})]


def _sampled(output: Tensor) -> list[Tensor]:
    """At most some million elements, from everywhere."""
    flat = output.detach().flatten()
    return [flat[:: max(1, flat.numel() >> 22)].clone()]


def _compiled() -> dict[str, Any]:
    """What torch.compile did: breaks of the graph, and functions that it has kept out of CUDA graphs."""
    from torch._dynamo.utils import counters

    return {
        "graph_breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
        "cuda_graphs": _recorded(),
    }


def _recorded() -> int:
    """How many CUDA graphs torch.compile has recorded."""
    from torch._inductor import cudagraph_trees as trees

    if not torch.cuda.is_available():
        return 0
    manager = trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    return 0 if manager is None else len(manager.ids_to_funcs)


def _gflow(
    setting: Setting,
    model: Model,
    module: nn.Module,
    batch: tuple[Tensor, ...],
    training: bool,
    *,
    libraries: bool,
) -> Step:
    if training:
        graph = for_setting(setting, model.graph(module), libraries=libraries)
        return Step(
            lambda: graph(*batch).detach().clone(),
            lambda: _moments(module, graph._state.optimizers),
            lambda: what_ran(graph),
        )
    inference = for_setting(setting, Inference(model, module), libraries=libraries)

    def infer() -> Tensor:
        with torch.no_grad():
            return inference(*batch[:-1]).float().mean()

    def output() -> list[Tensor]:
        with torch.no_grad():
            return _sampled(inference(*batch[:-1]))

    return Step(infer, output, lambda: what_ran(inference))


class Inference(gflow.nn.Graph):
    """A model's output."""

    def __init__(self, model: Model, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        if model.amp is not None:
            self.config.enable_amp(True, dtype=model.amp)

    def build(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)

"""One step of a model by each peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cuda_models import MODELS, Model
from benchmarks.gpu.graphs import for_setting
from benchmarks.gpu.setting import Setting
from benchmarks.items import adamw, loss_of, sgd
from benchmarks.models import Decoder, ResidualBlock

Step = Callable[[], Tensor]

MODES = ("training", "inference")


def models(setting: Setting) -> dict[str, Model]:
    """The models by name; where an interpreter works, two that are tiny."""
    return _TINY if setting.stand_in else MODELS


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


def make_step(setting: Setting, name: str, mode: str, peer: str) -> Step:
    """A function that takes one step and returns the loss, or a number that tells of the output."""
    model = models(setting)[name]
    training = mode == "training"
    torch.manual_seed(0)
    module = model.make().to(setting.where, model.dtype).train(training)
    if any(p.dim() == 4 for p in module.parameters()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = batch_of(setting, model, module)
    if peer == "gflow":
        return _gflow(setting, model, module, batch, training)
    options: dict[str, Any] = {"mode": "max-autotune"} if peer == "max-autotune" else {}
    compiled = (lambda f, **_: f) if peer == "eager" else torch.compile
    kind = setting.where.type
    mixed = torch.autocast(kind, dtype=model.amp, enabled=model.amp is not None)

    def forward() -> Tensor:
        with mixed:
            return module(*batch[:-1])

    if not training:
        run = compiled(forward, **options)

        def infer() -> Tensor:
            with torch.no_grad():
                return run().float().mean()

        return infer
    optimizer = model.optimizer(module)
    loss_and_forward = compiled(lambda: loss_of(forward().float(), batch[-1]), **options)
    update = compiled(optimizer.step)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_and_forward()
        loss.backward()
        update()
        return loss.detach()

    return step


def _gflow(
    setting: Setting, model: Model, module: nn.Module, batch: tuple[Tensor, ...], training: bool
) -> Step:
    if training:
        graph = for_setting(setting, model.graph(module))
        return lambda: graph(*batch)
    import gflow

    class Inference(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            if model.amp is not None:
                self.config.enable_amp(True, dtype=model.amp)

        def build(self, *inputs: Tensor) -> Tensor:
            return self.module(*inputs)

    run = for_setting(setting, Inference())

    def infer() -> Tensor:
        with torch.no_grad():
            return run(*batch[:-1]).float().mean()

    return infer

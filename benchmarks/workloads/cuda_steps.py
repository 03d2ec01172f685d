"""The training steps that a GPU is measured on, at full size, and their programs without one.

Models are built without memory of their own: parameters are never written, so that a machine without
the memory for a step can still compile it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import gflow
from benchmarks.workloads.items import adamw, loss_of, sgd
from benchmarks.workloads.networks import Bert, Decoder, Llama, ResNet50
from examples.mobilenet_v2 import MobileNetV2


@dataclass(frozen=True)
class Model:
    """A model, its inputs (the last one the target), and how it trains.

    dtype: of parameters. amp: of mixed precision, None without.
    halves: products are of numbers of two bytes, for tensor cores.
    """

    name: str
    description: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    dtype: torch.dtype = torch.float32
    amp: torch.dtype | None = None

    @property
    def halves(self) -> bool:
        return self.amp is not None or self.dtype.itemsize == 2

    def empty(self) -> nn.Module:
        """The model with parameters that nobody has written."""
        with torch.device("meta"):
            model = self.make()
        return model.to(self.dtype).to_empty(device="cpu").train()

    def graph(self, model: nn.Module | None = None) -> TrainStep:
        """The training step."""
        return TrainStep(self, self.empty() if model is None else model)


class TrainStep(gflow.nn.Graph):
    """Forward, cross-entropy, backward and update."""

    def __init__(self, model: Model, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(model.optimizer(module))
        if model.amp is not None:
            self.config.enable_amp(True, dtype=model.amp)

    def build(self, *inputs: Tensor) -> Tensor:
        *given, target = inputs
        loss = loss_of(self.module(*given).float(), target)
        loss.backward()
        return loss


def _pictures(batch: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (
        torch.empty(batch, 3, size, size),
        torch.zeros(batch, dtype=torch.int64),
    )


def _text(batch: int, tokens: int, mask: bool = False) -> Callable[[], tuple[Tensor, ...]]:
    shape = batch, tokens
    more = (torch.ones(shape, dtype=torch.bool),) if mask else ()
    return lambda: (
        torch.zeros(shape, dtype=torch.int64),
        *more,
        torch.zeros(shape, dtype=torch.int64),
    )


def _mobilenet(classes: int) -> Callable[[], nn.Module]:
    return lambda: MobileNetV2(classes, dropout=0.0)


_MODELS: Sequence[Model] = (
    Model(
        "mobilenet_v2_32", "MobileNetV2, batch 64, 3x32x32, float32, SGD with momentum",
        _mobilenet(10), _pictures(64, 32), sgd,
    ),
    Model(
        "mobilenet_v2_224", "MobileNetV2, batch 128, 3x224x224, float32, SGD with momentum",
        _mobilenet(1000), _pictures(128, 224), sgd,
    ),
    Model(
        "resnet50", "ResNet-50, batch 128, 3x224x224, float32, SGD with momentum",
        ResNet50, _pictures(128, 224), sgd,
    ),
    Model(
        "resnet50_amp", "ResNet-50, batch 128, 3x224x224, bfloat16 by mixed precision, SGD with momentum",
        ResNet50, _pictures(128, 224), sgd, amp=torch.bfloat16,
    ),
    Model(
        "gpt2", "GPT-2 small, 8x1024 tokens, bfloat16, AdamW",
        lambda: Decoder(12, 768, 12, 50257, 1024), _text(8, 1024), adamw, torch.bfloat16,
    ),
    Model(
        "bert", "BERT-base, 32x128 tokens with a padding mask, bfloat16 by mixed precision, AdamW",
        Bert, _text(32, 128, mask=True), adamw, amp=torch.bfloat16,
    ),
    Model(
        "llama", "two layers of a 1B Llama, 4x2048 tokens, bfloat16, AdamW",
        Llama, _text(4, 2048), adamw, torch.bfloat16,
    ),
)  # fmt: skip

MODELS = {model.name: model for model in _MODELS}


def trace_of(graph: TrainStep, inputs: Sequence[Tensor]) -> Any:
    """The trace of a training step; nothing is computed."""
    from gflow.call.signature import bind_call
    from gflow.tracing.program.modules import collect_modules
    from gflow.tracing.request import TraceRequest
    from gflow.tracing.tracer import trace_graph

    state = graph._checked()
    state.building = True
    try:
        table, call = collect_modules(graph._roots()), bind_call(graph.build, inputs, {})
        return trace_graph(TraceRequest(state.name, call, table, state.optimizers))
    finally:
        state.building = False

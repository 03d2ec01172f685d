"""Whole training steps as Triton kernels: forward, backward and update of small models, compiled for CUDA and
run by Triton's interpreter, agree with eager over two steps of fresh inputs, and run through PyTorch
only where it is known. Batches are odd, sizes are no multiples of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import CASES, Case, harness
from zoo.case import adamw, class_loss, sgd, square_loss

from benchmarks.workloads.mixed_precision import Inverted
from benchmarks.workloads.networks import Bert, Bottleneck, Decoder, Llama
from gflow.compiler import CompileOptions
from gflow.dialects.program import AtenStep, LaunchStep

pytest.importorskip("triton")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Trained:
    """A case, and what it runs in. amp: of mixed precision."""

    case: Case
    dtype: torch.dtype = F32
    amp: torch.dtype | None = None

    @property
    def id(self) -> str:
        return f"{self.case.name}-{str(self.dtype)[6:]}{'-amp' if self.amp else ''}"


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(13, 21), nn.GELU(), nn.Linear(21, 17), nn.Tanh(), nn.Linear(17, 5)
    )


def rows() -> tuple[Tensor, ...]:
    return torch.randn(7, 13), torch.randint(5, (7,))


def pooled(*layers: nn.Module, channels: int = 8) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def pictures(batch: int = 3, size: int = 9) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(5, (batch,))


def mobilenet() -> nn.Module:
    stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
    return pooled(*stem, Inverted(8, 8, 1))


def resnet() -> nn.Module:
    stem = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    return pooled(*stem, Bottleneck(8, 4, 2), channels=16)


def convnet() -> nn.Module:
    return pooled(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 3, 3, 2, 1), nn.Sigmoid()
    )


def reconstruction(model: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    out = model(x)
    return F.mse_loss(out, x), out


class Norms(nn.Module):
    """One normalisation after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1)
        self.batch, self.group = nn.BatchNorm2d(6, momentum=0.3), nn.GroupNorm(2, 6)
        self.instance, self.layer = nn.InstanceNorm2d(6, affine=True), nn.LayerNorm(5)
        self.rms = nn.RMSNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.instance(self.group(self.batch(self.first(x)))) + 0.1 * x.sum(1, keepdim=True)
        return self.rms(self.layer(x) + x)


class Words(nn.Module):
    """The mean of embeddings, classified; a padding index that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 9, padding_idx=0), nn.Linear(9, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 16, 3, 3), nn.Linear(16, 5)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.layer(torch.cat([self.cls.expand(len(x), -1, -1), x], 1))[:, 0])


def text(batch: int = 3, tokens: int = 7) -> tuple[Tensor, ...]:
    return torch.randint(19, (batch, tokens)), torch.randint(19, (batch, tokens))


def masked() -> tuple[Tensor, ...]:
    ids, labels = text()
    mask = torch.arange(7)[None] < torch.randint(3, 8, (3, 1))
    return ids, mask, labels


def next_token(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, Any]:
    logits = model(*inputs[:-1])
    logits = logits.float()
    return F.cross_entropy(logits.flatten(0, 1), inputs[-1].flatten()), logits


gpt = partial(Decoder, 1, 16, 2, 19, 7)
bert = partial(Bert, 1, 16, 2, 19, 8)
llama = partial(Llama, 1, 16, 4, 2, 24, 19)


def case(
    name: str,
    make: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Any, ...]],
    program: Any = class_loss,
    optimizer: Any = sgd,
) -> Case:
    return Case(name, make, inputs, program, optimizer)


QUICK = [
    Trained(case("MLP", mlp, rows)),
    Trained(case("MLP", mlp, rows, optimizer=plain_sgd), dtype=F16),
    Trained(case("MLP", mlp, rows, optimizer=adam), dtype=BF16),
    Trained(case("MobileNetV2 block", mobilenet, pictures)),
    Trained(case("ResNet bottleneck", resnet, pictures)),
    Trained(case("autoencoder", autoencoder, lambda: (torch.randn(3, 3, 7, 7),), reconstruction, adam)),
    Trained(case("normalisations", Norms, lambda: (torch.randn(3, 3, 7, 5),), square_loss)),
    Trained(case("embeddings", Words, lambda: (torch.randint(11, (5, 7)), torch.randint(5, (5,))), optimizer=adam)),
    Trained(case("LSTM", Recurrent, lambda: (torch.randn(3, 4, 5), torch.randint(5, (3,))))),
    Trained(case("GPT", gpt, text, next_token, adamw)),
    Trained(case("BERT", bert, masked, next_token), amp=BF16),
    Trained(case("Llama", llama, text, next_token, adamw)),
]  # fmt: skip

SWEEP = [
    Trained(case("MLP", mlp, rows), amp=F16),
    Trained(case("convnet", convnet, pictures), amp=BF16),
    Trained(case("convnet", convnet, pictures), dtype=BF16),
    Trained(case("MobileNetV2 block", mobilenet, pictures), amp=BF16),
    Trained(case("ViT", Vit, pictures, optimizer=adamw)),
    Trained(case("GPT", gpt, text, next_token, adamw), dtype=BF16),
    Trained(case("Llama", llama, text, next_token, adamw), dtype=BF16),
    Trained(case("BERT", bert, masked, next_token, adamw)),
    *(
        Trained(found)
        for found in CASES
        if found.name in ("Llama", "GPT", "T5", "nn.GRU", "LoRA", "tied weights", "zero-size batch",
                          "batch of one row", "strided input", "cross_entropy all three", "norms in the loss")
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_gpus_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")


def _check(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    given = trained.case

    class Train(harness.Train):
        def __init__(self, found: Case, *args: Any) -> None:
            super().__init__(given, *args)
            self.config.compile_options = CompileOptions(target="cuda:90")
            if trained.amp is not None:
                self.config.enable_amp(True, dtype=trained.amp)

    def eager(model: nn.Module, *inputs: Any) -> tuple[Tensor, Any]:
        if trained.amp is None:
            return given.program(model, *inputs)
        with torch.autocast("cpu", dtype=trained.amp):
            loss, out = given.program(model, *inputs)
        return loss, out.float()  # as a graph gives it

    monkeypatch.setattr(harness, "Train", Train)
    found = Case(given.name, given.make, given.inputs, eager, given.optimizer)
    verdict, graph = harness.check(found, trained.dtype, train=True, steps=2)
    assert not verdict.wrong
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    steps = plan.compiled.program.steps
    assert any(isinstance(s, LaunchStep) for s in steps) or "zero" in given.name
    assert not any(isinstance(s, AtenStep) for s in steps)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trained", QUICK, ids=lambda trained: trained.id)
def test_trains_like_eager(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(trained, monkeypatch)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trained", SWEEP, ids=lambda trained: trained.id)
def test_more_models_train_like_eager(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(trained, monkeypatch)

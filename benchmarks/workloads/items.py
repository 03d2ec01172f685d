"""What is measured: each item makes the same work for every peer, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.networks import (
    MLP,
    Decoder,
    LstmLanguageModel,
    ResNet18,
    ResNet50,
    UNet,
    VideoResNet18,
)
from examples.mobilenet_v2 import MobileNetV2


@dataclass
class Work:
    """A module and its inputs.

    With `optimizer`, the work is a training step: the last input is the target, and the loss is
    cross-entropy. With `gradients`, it is the forward and the gradients of the module's
    parameters and first input for a given output gradient, the last input. Else the forward.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    optimizer: torch.optim.Optimizer | None = None
    gradients: bool = False


@dataclass
class Item:
    name: str
    description: str
    kind: str  # "training" or "kernel"
    make: Callable[[], Work]  # the real size
    make_quick: Callable[[], Work]  # a small one, to see that everything runs


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy: the classes are the last dimension of `logits`, the others are those of `target`."""
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def _pictures(batch: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))


def text(vocabulary: int, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random tokens, and those that follow them, both `(batch, tokens)`."""
    found = torch.randint(vocabulary, (batch, tokens + 1))
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def mobilenet_v2(batch: int = 64) -> Work:
    # No dropout: peers draw different masks, and their losses are compared.
    model = MobileNetV2(10, dropout=0.0)
    return Work(model, _pictures(batch, 32, 10), sgd(model))


def resnet18(batch: int = 16) -> Work:
    model = ResNet18(10)
    return Work(model, _pictures(batch, 64, 10), sgd(model))


def decoder(
    depth: int = 6,
    width: int = 384,
    heads: int = 6,
    batch: int = 8,
    tokens: int = 128,
    vocabulary: int = 8192,
) -> Work:
    inputs = text(vocabulary, batch, tokens)
    model = Decoder(depth, width, heads, vocabulary, tokens)
    return Work(model, inputs, adamw(model))


def mlp(batch: int = 128) -> Work:
    model = MLP()
    return Work(model, (torch.randn(batch, 784), torch.randint(10, (batch,))), sgd(model))


def resnet50(batch: int = 4, size: int = 224, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> Work:
    model = ResNet50(10, blocks)
    return Work(model, _pictures(batch, size, 10), sgd(model))


def unet(batch: int = 4, size: int = 96, widths: tuple[int, ...] = (16, 32, 64, 128)) -> Work:
    model = UNet(widths, 4)
    inputs = torch.randn(batch, 3, size, size), torch.randint(4, (batch, size, size))
    return Work(model, inputs, sgd(model))


def lstm(width: int = 256, batch: int = 16, tokens: int = 32) -> Work:
    model = LstmLanguageModel(2048, width)
    return Work(model, text(2048, batch, tokens), sgd(model))


def r3d_18(batch: int = 2, frames: int = 8, size: int = 112, width: int = 64) -> Work:
    model = VideoResNet18(10, width)
    inputs = torch.randn(batch, 3, frames, size, size), torch.randint(10, (batch,))
    return Work(model, inputs, sgd(model))


class ReluMulAdd(nn.Module):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.relu(a * b + c)


class GeluChain(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.gelu(F.gelu(x) * y + x) * torch.sigmoid(y)


def relu_mul_add(size: int = 4 << 20) -> Work:
    return Work(ReluMulAdd(), tuple(torch.randn(size) for _ in range(3)))


def gelu_chain(size: int = 4 << 20) -> Work:
    return Work(GeluChain(), (torch.randn(size), torch.randn(size)))


def softmax(rows: int = 4096, columns: int = 1024) -> Work:
    return Work(nn.Softmax(-1), (torch.randn(rows, columns),))


def layer_norm(rows: int = 4096, columns: int = 1024) -> Work:
    return Work(nn.LayerNorm(columns), (torch.randn(rows, columns),))


def layer_norm_gradients(rows: int = 4096, columns: int = 1024) -> Work:
    inputs = torch.randn(rows, columns), torch.randn(rows, columns)
    return Work(nn.LayerNorm(columns), inputs, gradients=True)


_SMALL = 1 << 12

ITEMS = {
    item.name: item
    for item in (
        Item(
            "mobilenet_v2",
            "MobileNetV2 training, batch 64, 3x32x32, SGD with momentum",
            "training",
            mobilenet_v2,
            partial(mobilenet_v2, 4),
        ),
        Item(
            "resnet18",
            "ResNet-18 training, batch 16, 3x64x64, SGD with momentum",
            "training",
            resnet18,
            partial(resnet18, 2),
        ),
        Item(
            "decoder",
            "GPT-2-style decoder training, 6 layers, width 384, 8x128 tokens, AdamW",
            "training",
            decoder,
            partial(decoder, 2, 32, 2, 2, 16, 128),
        ),
        Item(
            "mlp",
            "MLP training, 784-1024-1024-10, batch 128, SGD with momentum",
            "training",
            mlp,
            partial(mlp, 4),
        ),
        Item(
            "resnet50",
            "ResNet-50 training, batch 4, 3x224x224, SGD with momentum",
            "training",
            resnet50,
            partial(resnet50, 2, 32, (1, 1, 1, 1)),
        ),
        Item(
            "unet",
            "U-Net training, 4 levels, batch 4, 3x96x96, SGD with momentum",
            "training",
            unet,
            partial(unet, 1, 16, (4, 8, 16)),
        ),
        Item(
            "lstm",
            "LSTM language model training, 2 layers, width 256, 16x32 tokens, SGD with momentum",
            "training",
            lstm,
            partial(lstm, 32, 2, 4),
        ),
        Item(
            "r3d_18",
            "R3D-18 training, batch 2, 8 frames of 3x112x112, SGD with momentum",
            "training",
            r3d_18,
            partial(r3d_18, 1, 4, 16, 8),
        ),
        Item(
            "relu_mul_add",
            "relu(a*b+c), 4 Mi floats",
            "kernel",
            relu_mul_add,
            partial(relu_mul_add, _SMALL),
        ),
        Item(
            "gelu_chain",
            "gelu(gelu(x)*y+x)*sigmoid(y), 4 Mi floats",
            "kernel",
            gelu_chain,
            partial(gelu_chain, _SMALL),
        ),
        Item("softmax", "softmax of 4096 rows of 1024", "kernel", softmax, partial(softmax, 8, 64)),
        Item(
            "layer_norm",
            "layer norm of 4096 rows of 1024, forward",
            "kernel",
            layer_norm,
            partial(layer_norm, 8, 64),
        ),
        Item(
            "layer_norm_grad",
            "layer norm of 4096 rows of 1024, forward and all gradients",
            "kernel",
            layer_norm_gradients,
            partial(layer_norm_gradients, 8, 64),
        ),
    )
}


def make_work(name: str, quick: bool = False, seed: int = 0) -> Work:
    """The work of an item; the same parameters and inputs at every call."""
    torch.manual_seed(seed)
    return ITEMS[name].make_quick() if quick else ITEMS[name].make()

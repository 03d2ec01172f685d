"""The models whose memory is measured beside those of `items.py`: training steps of other shapes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.items import ITEMS, Work, adamw, text


class EncoderLayer(nn.Module):
    """BERT's layer: attention and a GELU layer, each with dropout, a shortcut and a norm behind."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = self.dropout(scores.softmax(-1)) @ v
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        x = self.norm1(x + self.dropout(mixed))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """A BERT-style encoder with a head over the vocabulary."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, 0.1) for _ in range(depth)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.token(tokens) + self.position(positions)))
        return self.head(self.layers(x))


class VisionTransformer(nn.Module):
    """ViT: patches by a convolution, a class token, PyTorch's own encoder, norms first."""

    def __init__(self, depth: int, width: int, heads: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layers = [
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        ]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


class ConvNeXtBlock(nn.Module):
    """A 7x7 depthwise convolution, a norm over channels, a four times wider GELU layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """ConvNeXt of Liu et al., 2022, for small pictures."""

    def __init__(
        self, depths: tuple[int, ...] = (2, 2, 4), widths: tuple[int, ...] = (48, 96, 192)
    ):
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 2, 2), nn.GroupNorm(1, widths[0])]
        for i, (depth, width) in enumerate(zip(depths, widths)):
            if i:
                parts += [nn.GroupNorm(1, widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
            parts += [ConvNeXtBlock(width) for _ in range(depth)]
        self.body = nn.Sequential(*parts)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x).mean((2, 3))))


def bert(depth: int = 4, width: int = 256, batch: int = 8, tokens: int = 128) -> Work:
    model = Bert(depth, width, 4, 4096, tokens)
    return Work(model, text(4096, batch, tokens), adamw(model))


def vit(depth: int = 6, width: int = 192, batch: int = 16, size: int = 64) -> Work:
    model = VisionTransformer(depth, width, 3, size, 8)
    inputs = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    return Work(model, inputs, adamw(model))


def convnext(batch: int = 16, size: int = 32) -> Work:
    model = ConvNeXt()
    inputs = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    return Work(model, inputs, adamw(model))


#: name → (description, the real size, a small one)
MODELS = {
    name: (ITEMS[name].description, ITEMS[name].make, ITEMS[name].make_quick)
    for name in ("mobilenet_v2", "resnet18", "decoder", "mlp", "unet", "lstm")
} | {
    "bert": (
        "BERT-style encoder, 4 layers, width 256, 8x128 tokens, dropout, AdamW",
        bert,
        partial(bert, 2, 32, 2, 16),
    ),
    "vit": (
        "ViT, 6 layers, width 192, batch 16, 3x64x64, AdamW",
        vit,
        partial(vit, 2, 48, 2, 32),
    ),
    "convnext": ("ConvNeXt, 8 blocks, batch 16, 3x32x32, AdamW", convnext, partial(convnext, 1, 8)),
}


def make_work(name: str, quick: bool = False, seed: int = 0) -> Work:
    """The work of a model; the same parameters and inputs at every call."""
    torch.manual_seed(seed)
    _, real, small = MODELS[name]
    return small() if quick else real()

"""The models that are measured, as plain PyTorch. MobileNetV2 is the one of `examples/`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: by the number of spatial dimensions
_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class ResidualBlock(nn.Module):
    """Two convolutions with kernels of 3, and a shortcut, which one with a kernel of 1 adapts where shapes change."""

    def __init__(self, cin: int, cout: int, stride: int, dims: int = 2) -> None:
        super().__init__()
        convolution, norm = _CONVOLUTIONS[dims], _NORMS[dims]
        self.conv1 = convolution(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = norm(cout)
        self.conv2 = convolution(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = norm(cout)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(convolution(cin, cout, 1, stride, bias=False), norm(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 of He et al., 2015: 7x7 stem with max pooling, four stages of two blocks."""

    def __init__(self, num_classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, cin = [], 64
        for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [ResidualBlock(cin, cout, stride), ResidualBlock(cout, cout, 1)]
            cin = cout
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class DecoderLayer(nn.Module):
    """Attention and a four times wider GELU layer, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A GPT-2-style decoder: learned positions, layer norm first, output tied to the embedding."""

    def __init__(
        self,
        depth: int = 6,
        width: int = 384,
        heads: int = 6,
        vocabulary: int = 8192,
        context: int = 128,
    ):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.layers = nn.Sequential(*(DecoderLayer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return F.linear(self.norm(self.layers(x)), self.token.weight)


class MLP(nn.Sequential):
    def __init__(self, sizes: tuple[int, ...] = (784, 1024, 1024, 10)):
        layers: list[nn.Module] = []
        for cin, cout in pairwise(sizes):
            layers += [nn.Linear(cin, cout), nn.GELU()]
        super().__init__(*layers[:-1])


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, which a 1x1 convolution adapts where shapes change."""

    def __init__(self, cin: int, width: int, stride: int):
        super().__init__()
        cout = 4 * width
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50, with the stride in the 3x3 convolutions: stages of 3, 4, 6 and 3 bottlenecks."""

    def __init__(self, num_classes: int = 1000, blocks: tuple[int, ...] = (3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, cin = [], 64
        for stage, count in enumerate(blocks):
            for block in range(count):
                width = 64 << stage
                layers.append(Bottleneck(cin, width, 2 if block == 0 and stage else 1))
                cin = 4 * width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(cin, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class EncoderLayer(nn.Module):
    """Attention with a mask and a four times wider GELU layer, each followed by a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).reshape(batch, tokens, width)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """An encoder as BERT-base, with the head that names masked words; no dropout."""

    def __init__(
        self,
        depth: int = 12,
        width: int = 768,
        heads: int = 12,
        vocabulary: int = 30522,
        context: int = 512,
    ):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.transform, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.token(tokens) + self.position(positions))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        x = self.last(F.gelu(self.transform(x)))
        return F.linear(x, self.token.weight, self.bias)


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class LlamaLayer(nn.Module):
    """Grouped-query attention with rotary positions and a gated SiLU layer, each after an RMS norm."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        v = self.v(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A Llama-style decoder; by default two layers of one with a billion parameters."""

    def __init__(
        self,
        depth: int = 2,
        width: int = 2048,
        heads: int = 32,
        groups: int = 8,
        hidden: int = 8192,
        vocabulary: int = 32000,
    ):
        super().__init__()
        self.size = width // heads
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups, hidden) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        steps = torch.arange(0, self.size, 2, device=tokens.device).float() / self.size
        positions = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(positions, 5e5**-steps)
        angles = torch.cat((angles, angles), -1)
        dtype = self.token.weight.dtype
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class DoubleConvolution(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, cin: int, cout: int):
        layers: list[nn.Module] = []
        for width in (cin, cout):
            layers += [
                nn.Conv2d(width, cout, 3, padding=1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """The U-Net of Ronneberger et al., 2015, with padding and batch norm: levels joined by concatenation.

    Takes `(batch, 3, height, width)` and gives the classes of each pixel, `(batch, height, width, classes)`.
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128, 256), classes: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            DoubleConvolution(cin, cout) for cin, cout in pairwise([3, *widths])
        )
        pairs = list(pairwise(widths[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.join = nn.ModuleList(DoubleConvolution(a, b) for a, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([up(x), beside], 1))
        return self.head(x).permute(0, 2, 3, 1)


class VideoResNet18(nn.Module):
    """R3D-18 of Tran et al., 2018, as torchvision's `r3d_18`: takes `(batch, 3, frames, height, width)`."""

    def __init__(self, num_classes: int = 400, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(inplace=True),
        )
        blocks, cin = [], width
        for cout, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            blocks += [ResidualBlock(cin, cout, stride, 3), ResidualBlock(cout, cout, 1, 3)]
            cin = cout
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(cin, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3, 4)))


class LstmLanguageModel(nn.Module):
    """Two LSTM layers between an embedding and a linear layer over the vocabulary."""

    def __init__(self, vocabulary: int = 2048, width: int = 256) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.token(tokens))[0])

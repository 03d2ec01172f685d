"""MobileNetV2 as plain PyTorch: inverted residuals with linear bottlenecks (Sandler et al., 2018).

Nothing here knows of gflow: `flow.nn.Graph` takes any `torch.nn.Module`.
"""

from __future__ import annotations

import torch
from torch import nn

# expansion, output channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def round_channels(channels: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `channels`, never more than 10 % below it."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


class ConvBNReLU(nn.Sequential):
    def __init__(self, cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1):
        super().__init__(
            nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter by depthwise 3x3, project by 1x1 without activation; add the input."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int):
        super().__init__()
        hidden = cin * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(ConvBNReLU(cin, hidden, kernel=1))
        layers += [
            ConvBNReLU(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """The network of the paper, 32-fold downsampling; `small_images` downsamples 8-fold instead.

    `small_images` keeps the stride of the stem and of the second stage at 1, as is usual for
    32x32 pictures: better accuracy there for about fourteen times the work.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        width: float = 1.0,
        dropout: float = 0.2,
        small_images: bool = False,
    ):
        super().__init__()
        channels = round_channels(32 * width)
        last = round_channels(1280 * max(1.0, width))
        features: list[nn.Module] = [ConvBNReLU(3, channels, stride=1 if small_images else 2)]
        for number, (expansion, base, blocks, stride) in enumerate(STAGES):
            cout = round_channels(base * width)
            if small_images and number == 1:
                stride = 1
            for block in range(blocks):
                features.append(
                    InvertedResidual(channels, cout, stride if block == 0 else 1, expansion)
                )
                channels = cout
        features.append(ConvBNReLU(channels, last, kernel=1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, num_classes))
        self.apply(initialize)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)  # fan in: right for depthwise too
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.01)
        nn.init.zeros_(module.bias)

"""Convolutional networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case, Tensor, class_loss


def images(channels: int = 3, size: int = 16, batch: int = 4, classes: int = 5) -> Any:
    return lambda: (torch.randn(batch, channels, size, size), torch.randint(classes, (batch,)))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 8, 0, 16, 16, 0):
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 32), nn.ReLU(), nn.Linear(32, 5))


def conv_bn(a: int, b: int, k: int, s: int = 1, groups: int = 1, act: Any = nn.ReLU) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(a, b, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(b), act()
    )


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(outer, inner, 1), conv_bn(inner, inner, 3, stride, groups),
            nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.short = nn.Conv2d(outer, outer, 1, stride) if stride > 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.short(x)
        return self.relu(out)


def head(width: int, classes: int = 5) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


def resnet(groups: int = 1) -> nn.Module:
    return nn.Sequential(
        conv_bn(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), Bottleneck(8, 16, 1, groups),
        Bottleneck(8, 16, 2, groups), *head(16),
    )  # fmt: skip


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(8 + 4 * i), nn.ReLU(), nn.Conv2d(8 + 4 * i, 4, 3, padding=1)
            )
            for i in range(3)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(20), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))
        self.head = nn.Sequential(*head(10))

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(self.transition(torch.cat(features, dim=1)))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = conv_bn(3, 4, 1)
        self.three = nn.Sequential(conv_bn(3, 4, 1), nn.Conv2d(4, 6, (1, 3), padding=(0, 1)),
                                   nn.Conv2d(6, 6, (3, 1), padding=(1, 0)))  # fmt: skip
        self.five = nn.Sequential(conv_bn(3, 2, 1), conv_bn(2, 4, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(3, 4, 1))
        self.head = nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), *head(18))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1))


class UNet(nn.Module):
    def __init__(self, transpose: bool, mode: str = "nearest") -> None:
        super().__init__()
        self.down1, self.down2 = conv_bn(3, 8, 3), conv_bn(8, 16, 3)
        self.middle = conv_bn(16, 16, 3)
        if transpose:
            self.up: nn.Module = nn.ConvTranspose2d(16, 8, 2, stride=2)
        else:
            align = None if mode == "nearest" else False
            self.up = nn.Sequential(
                nn.Upsample(scale_factor=2, mode=mode, align_corners=align), nn.Conv2d(16, 8, 1)
            )
        self.last = nn.Conv2d(16, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.middle(self.down2(F.max_pool2d(a, 2)))
        return self.last(torch.cat([self.up(b), a], 1))


def dense_labels() -> tuple[Any, ...]:
    return torch.randn(2, 3, 16, 16), torch.randint(5, (2, 16, 16))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.down(F.gelu(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), LayerNorm2d(16), ConvNeXtBlock(16), ConvNeXtBlock(16), *head(16)
    )


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(scale)))) * x


class InvertedResidual(nn.Module):
    def __init__(self, width: int, act: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(width, 2 * width, 1, act=act),
            conv_bn(2 * width, 2 * width, 5, groups=2 * width, act=act),
            SqueezeExcite(2 * width), conv_bn(2 * width, width, 1, act=nn.Identity),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mobilenet_v3() -> nn.Module:
    return nn.Sequential(
        conv_bn(3, 8, 3, 2, act=nn.Hardswish), InvertedResidual(8, nn.ReLU),
        InvertedResidual(8, nn.Hardswish), *head(8),
    )  # fmt: skip


def efficientnet() -> nn.Module:
    return nn.Sequential(conv_bn(3, 8, 3, 2, act=nn.SiLU), InvertedResidual(8, nn.SiLU), *head(8))


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class ShuffleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2)
        self.branch = nn.Sequential(conv_bn(8, 8, 1), conv_bn(8, 8, 3, groups=8), conv_bn(8, 8, 1))
        self.head = nn.Sequential(*head(16))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        return self.head(shuffle(torch.cat([left, self.branch(right)], 1), 2))


def normed(norm: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.SiLU(), nn.Conv2d(8, 8, 3), norm(8), *head(8)
    )


def pooled(pool: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Flatten(), nn.LazyLinear(5))


def activated(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 4, 3), make(), nn.Conv2d(4, 4, 3), make(), *head(4))


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=4, dilation=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(8, 8, 3, stride=2, padding="valid"), nn.ELU(), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(4, 4, (1, 2, 3), padding="same"), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(1),
        nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


def dilated() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=4, dilation=4, padding_mode="reflect"), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), *head(8),
    )  # fmt: skip


def generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(4, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, groups=2), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 3, 2, 1, output_padding=1, dilation=1), nn.Tanh(),
    )  # fmt: skip


def super_resolution() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 12, 3), nn.PixelShuffle(2), nn.PReLU(3),
        nn.ReplicationPad2d(1), nn.Conv2d(3, 3, 3), nn.PixelUnshuffle(2), nn.ZeroPad2d((1, 0, 2, 0)),
    )  # fmt: skip


class Spatial(nn.Module):
    """A spatial transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.LazyLinear(6))
        self.head = nn.Sequential(nn.Conv2d(3, 4, 3), *head(4))

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.1 * self.where(x).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False))


def _lazy(make: Callable[[], nn.Module], *shape: int) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model = make()
        with torch.no_grad():
            model(torch.randn(*shape))
        return model

    return made


def _norms() -> dict[str, Callable[[int], nn.Module]]:
    return {
        "GroupNorm": lambda c: nn.GroupNorm(4, c),
        "GroupNorm of one": lambda c: nn.GroupNorm(1, c),
        "InstanceNorm": lambda c: nn.InstanceNorm2d(c),
        "InstanceNorm tracked": lambda c: nn.InstanceNorm2d(
            c, affine=True, track_running_stats=True
        ),
        "BatchNorm no stats": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
        "BatchNorm cumulative": lambda c: nn.BatchNorm2d(c, momentum=None),
        "BatchNorm plain": lambda c: nn.BatchNorm2d(c, affine=False),
        "LayerNorm2d": LayerNorm2d,
        "LocalResponseNorm": lambda c: nn.LocalResponseNorm(3),
    }


_POOLS = [
    nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, ceil_mode=True), nn.AdaptiveAvgPool2d((3, 5)),
    nn.AdaptiveMaxPool2d((4, 3)), nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True),
    nn.LPPool2d(2, 3), nn.AvgPool2d(2, divisor_override=3),
]  # fmt: skip

_ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.SiLU, nn.GELU,
    lambda: nn.GELU("tanh"), nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
    nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, lambda: nn.Threshold(0.1, 0.0),
    nn.ReLU6, lambda: nn.LeakyReLU(0.1, inplace=True), lambda: nn.Softmax(1), nn.Softmin,
    lambda: nn.GLU(1),
]  # fmt: skip


def _glu() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GLU(1), nn.Conv2d(4, 4, 3), nn.GLU(1), *head(2))


def _activation_cases() -> list[Case]:
    cases = []
    for act in _ACTIVATIONS:
        kind = act().__class__.__name__
        name = f"{kind} tanh" if getattr(act(), "approximate", "") == "tanh" else kind
        make = _glu if kind == "GLU" else activated(act)
        cases.append(Case(name, make, images(size=8), class_loss, slow=kind not in _QUICK))
    return cases


_QUICK = ("PReLU", "ELU", "Mish", "GELU", "GLU")

CASES: list[Case] = [
    Case("VGG", vgg, images(), class_loss),
    Case("ResNet bottleneck", resnet, images(size=32), class_loss),
    Case("ResNeXt", lambda: resnet(4), images(size=32), class_loss, slow=True),
    Case("DenseNet", Dense, images(), class_loss, slow=True),
    Case("Inception", Inception, images(), class_loss, slow=True),
    Case("U-Net transpose", lambda: UNet(True), dense_labels, class_loss, slow=True),
    Case("U-Net nearest", lambda: UNet(False), dense_labels, class_loss, slow=True),
    Case("U-Net bilinear", lambda: UNet(False, "bilinear"), dense_labels, class_loss),
    Case("U-Net bicubic", lambda: UNet(False, "bicubic"), dense_labels, class_loss, slow=True),
    Case("ConvNeXt", convnext, images(size=32), class_loss),
    Case("MobileNetV3", mobilenet_v3, images(), class_loss),
    Case("EfficientNet", efficientnet, images(), class_loss, slow=True),
    Case("ShuffleNet", ShuffleNet, images(), class_loss, slow=True),
    Case("conv 1-d", conv1d, lambda: (torch.randn(4, 2, 32), torch.randint(5, (4,))), class_loss),
    Case("conv 3-d", conv3d, lambda: (torch.randn(2, 2, 8, 8, 8), torch.randint(5, (2,))),
         class_loss),
    Case("dilated, padding modes", dilated, images(), class_loss),
    Case("generator", generator, lambda: (torch.randn(4, 4, 1, 1),)),
    Case("super-resolution", super_resolution, lambda: (torch.randn(2, 3, 8, 8),)),
    Case("spatial transformer", _lazy(Spatial, 1, 3, 16, 16), images(), class_loss, slow=True),
    Case("channels_last", resnet, lambda: (
        torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last), torch.randint(5, (4,))),
        class_loss),
    Case("channels_last model", lambda: mobilenet_v3().to(memory_format=torch.channels_last),
         images(), class_loss, slow=True),
    Case("batch of one", convnext, images(size=32, batch=1), class_loss, slow=True),
    Case("odd sizes", resnet, lambda: (torch.randn(3, 3, 37, 29), torch.randint(5, (3,))),
         class_loss, slow=True),
    *[Case(name, normed(norm), images(size=8), class_loss, slow=name not in ("GroupNorm", "BatchNorm cumulative"))
      for name, norm in _norms().items()],
    *[Case(f"pool {i} {type(pool).__name__}", _lazy(pooled(pool), 1, 3, 16, 16), images(),
           class_loss, slow=i > 2) for i, pool in enumerate(_POOLS)],
    *_activation_cases(),
]  # fmt: skip

"""torchvision's model families: of each module the smallest model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .family import Family, fed, smallest, without_dropout


def found() -> Iterator[Family]:
    """One architecture for each module of torchvision but quantized ones."""
    from torchvision import models  # loaded by who measures it

    modules: dict[str, dict[str, int]] = {}
    for name in models.list_models():
        build = models.get_model_builder(name)
        kind = build.__module__.removeprefix("torchvision.models.")
        if not kind.startswith("quantization"):
            (*_, weights) = models.get_model_weights(name)
            modules.setdefault(kind, {})[name] = weights.meta["num_params"]
    for kind, sizes in modules.items():
        yield Family(kind, partial(_made, models, kind, sizes))


def _made(models: Any, kind: str, sizes: dict[str, int]) -> tuple[torch.nn.Module, dict[str, Any]]:
    options: dict[str, Any] = {"weights": None}
    if kind.startswith(("segmentation", "detection")):
        options["weights_backbone"] = None
    if kind in ("googlenet", "inception"):
        options["init_weights"] = False  # theirs takes seconds
    if kind.startswith("detection"):
        options |= {"min_size": 96, "max_size": 128}
    model = models.get_model(smallest(sizes), **options)
    return fed(without_dropout(model), _candidates(kind))


def _candidates(kind: str) -> Iterator[dict[str, Any]]:
    if kind.startswith("detection"):
        boxes, labels = torch.tensor([[4.0, 6.0, 40.0, 50.0]]), torch.tensor([1])
        images = [torch.rand(3, 96, 96) for _ in range(2)]
        yield {"images": images, "targets": [{"boxes": boxes, "labels": labels} for _ in images]}
    elif kind.startswith("optical_flow"):
        yield {f"image{i}": torch.randn(1, 3, 128, 128) for i in (1, 2)}
    elif kind.startswith("video"):
        for frames, size in ((8, 64), (16, 112), (16, 224)):
            yield {"x": torch.randn(2, 3, frames, size, size)}
    else:
        for size in (64, 96, 224, 299):
            yield {"x": torch.randn(2, 3, size, size)}
        yield {"input": torch.randn(2, 3, 64, 64)}

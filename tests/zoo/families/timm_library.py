"""timm's model families: of each module the smallest of its first models.

Four images, since batch normalization over two values, where maps have one element, amplifies rounding to anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .family import Family, fed, smallest, without_dropout

_MODELS = 12


def found() -> Iterator[Family]:
    """One architecture for each module of timm."""
    import timm  # loaded by who measures it

    seen: set[str] = set()
    for name in timm.list_models():
        module = timm.model_entrypoint(name).__module__
        if module not in seen:
            seen.add(module)
            kind = module.rpartition(".")[2]
            yield Family(kind, partial(_made, timm, kind))


def _made(timm: Any, module: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    sizes = {}
    for name in timm.list_models(module=module)[:_MODELS]:
        with torch.device("meta"):
            try:
                sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
            except (RuntimeError, NotImplementedError):  # it computes with values
                continue
    model = without_dropout(timm.create_model(smallest(sizes), num_classes=10))
    channels, *size = model.default_cfg["input_size"]  # type: ignore[union-attr, index, misc]
    shapes = ((64, 64), (128, 128), tuple(size))
    return fed(model, ({"x": torch.randn(4, channels, *shape)} for shape in shapes))

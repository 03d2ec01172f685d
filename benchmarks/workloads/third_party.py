"""Libraries of others beside PyTorch's CPU build.

torchvision's wheel on the package index is built for CUDA: its compiled operators do not load beside a
CPU build of PyTorch, and registering their shape rules then fails. `timm`, `diffusers` and `transformers`
import it where it is installed. Declaring the two schemas is enough for all that calls neither.
"""

from __future__ import annotations

import importlib.util

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a library's schemas live as long as it does


def declare_torchvision_ops() -> None:
    """Make `import torchvision` work beside a CPU build of PyTorch. May be called more than once."""
    if _declared or torch.version.cuda or importlib.util.find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)

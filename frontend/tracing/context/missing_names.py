"""What to write for a name of OneFlow's that PyTorch's tensors, modules and functions do not have.

These classes and modules are PyTorch's own, and gflow adds nothing to them. An AttributeError in `build()` gets a note.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

_GLOBAL = "is a function here: flow.to_global(x, placement, sbp)"
_AS_FUNCTION = "is a function here: flow.{name}(x, ...)"
_LAZY = "is not there: every tensor in build() is traced"
_RESIDENT = "is not there: the compiler places tensors; config.set_memory_budget() lowers the memory of a step"

#: names of tensors and of modules
_METHODS = {
    "to_global": _GLOBAL,
    "to_consistent": _GLOBAL,
    "local_to_global": _GLOBAL,
    "global_to_global": _GLOBAL,
    "to_local": "is a function here: flow.to_local(x)",
    "is_global": "is not there: a global tensor is a torch.distributed.tensor.DTensor",
    "placement": "is not there: x.device_mesh of a DTensor",
    "sbp": "is not there: x.placements of a DTensor",
    "is_lazy": _LAZY,
    "offload": _RESIDENT,
    "load": _RESIDENT,
    "is_offloaded": _RESIDENT,
    "nms": "is a function of torchvision: torchvision.ops.nms(boxes, scores, iou_threshold)",
    **dict.fromkeys(("cast", "in_top_k", "mish", "silu", "softplus", "softsign"), _AS_FUNCTION),
    "selu": "is a function here: flow.selu(x)",
}
#: names of `flow.nn.functional`
_FUNCTIONAL = {
    "depend": "is not needed: a program has no order but that of its data; leave the call out",
    "quick_gelu": "is flow.quick_gelu(x)",
    "square_relu": "is flow.square_relu(x)",
    "sparse_softmax_cross_entropy": "is cross_entropy(logits.flatten(0, -2), labels.flatten().long(), "
    "reduction='none')",
    "interpolate_like": "is interpolate(input, size=like.shape[2:], mode=mode)",
    "deform_conv2d": "is a function of torchvision: torchvision.ops.deform_conv2d",
    "ctc_greedy_decoder": "is not there; torchaudio.models.decoder decodes outside of the graph",
}
_UTILS = {
    "tensor": "is not needed: tensors are PyTorch's, so from_torch() and to_torch() change nothing",
    "global_view": "is not there: write flow.to_global(x, placement, sbp) and flow.to_local(x)",
}
_OF_MODULES = {"torch.nn.functional": _FUNCTIONAL, "torch.utils": _UTILS}


def advice(error: Exception) -> str | None:
    """What to write instead, if the error is an AttributeError for one of these names; None otherwise."""
    if not isinstance(error, AttributeError):
        return None
    held: Any = getattr(error, "obj", None)
    name = getattr(error, "name", None) or str(error).rpartition("has no attribute ")[2].strip("'")
    said = None
    if isinstance(held, ModuleType):
        said = _OF_MODULES.get(held.__name__, {}).get(name)
        if held.__name__ == "torch._C" and (hasattr(torch, name) or name in _FUNCTIONAL):
            said = f"is internal there: write flow.{name} or flow.nn.functional.{name}"
    elif held is None or isinstance(
        held, (torch.Tensor, torch.nn.Module)
    ):  # modules raise errors without an object
        said = _METHODS.get(name)
    return None if said is None else f"OneFlow's {name} {said.format(name=name)}"

"""Transforms around a call: those of `torch.func` (vmap, grad, jvp), forward-mode differentiation
(`torch.autograd.forward_ad`), `torch.jit.trace`, and dispatch modes (`FakeTensorMode`, `FlopCounterMode`, those of
`make_fx` and of users).

They act on each call of PyTorch's, or record it, and a program is none: its results would have no tangents, and a
trace would take them for constants.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad

from gflow.errors import GraphInputError
from gflow.runtime.recorded import recorder

from .location import here

#: the warning for a function within a transform
TRANSFORMED = (
    "runs in eager mode within transforms of torch.func (vmap, grad, jvp), torch.autograd.forward_ad, "
    "torch.jit.trace and dispatch modes (FlopCounterMode, FakeTensorMode), which act on PyTorch's own calls"
)
_VMAP = torch._C._dispatch_key_parse("VmapMode")  # of batched backwards


def is_transformed() -> bool:
    """Whether a `torch.func` transform, a batched backward (`is_grads_batched=True`), a level of forward-mode
    differentiation, a dispatch mode or a tracer is active."""
    return (
        forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
        or torch._C._dispatch_tls_is_dispatch_key_included(_VMAP)
        or bool(recorder())
    )


def check_untransformed(tensors: Iterable[Any]) -> None:
    """Check that no transform would be lost in a graph's call. tensors: its arguments and parameters.

    Raises:
        GraphInputError: one is batched, or differentiated in forward mode; or a tracer or a dispatch mode is active.
    """
    if name := recorder():
        raise GraphInputError(
            f"{here()}: a graph is called within {name}, which records or acts on PyTorch's calls, and a graph's "
            "program makes none that it would see. Call the module itself there; flow.save() stores a graph."
        )
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        wrapped = is_functorch_wrapped_tensor(tensor)
        if wrapped or forward_ad.unpack_dual(tensor).tangent is not None:
            raise GraphInputError(
                f"{here()}: a graph is called within a transform of torch.func or torch.autograd.forward_ad, which "
                "acts on PyTorch's own calls. Use the transform in build(), or call the module itself."
            )

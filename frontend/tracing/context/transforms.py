"""Transforms around a call: those of `torch.func` (vmap, grad, jvp), forward-mode differentiation
(`torch.autograd.forward_ad`), `torch.jit.trace`, and modes: dispatch modes (`FakeTensorMode`, `FlopCounterMode`, those
of `make_fx` and of users) and function modes (`TorchFunctionMode`), except a default device.

They act on each call of PyTorch's, or record it, and a program is none: its results would have no tangents, and a
trace would take them for constants.

Two other contexts depend on the calls within: `torch.autograd.detect_anomaly` looks for NaN in the gradient of each.
`torch.nn.utils.parametrize.cached()` computes each parametrized tensor once for all calls within, from the parameters
that the first one finds; a program computes it at each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from gflow.errors import GraphInputError, GraphTraceError
from gflow.runtime.recorded import acted_on, function_modes, recorder

from .location import here

#: the warning for a function within a transform
TRANSFORMED = (
    "runs in eager mode within transforms of torch.func (vmap, grad, jvp), torch.autograd.forward_ad, "
    "torch.jit.trace and modes (FlopCounterMode, FakeTensorMode, a TorchFunctionMode), which act on PyTorch's own calls"
)
#: the same for one with gradients within `torch.autograd.detect_anomaly`
ANOMALIES = (
    "runs in eager mode within torch.autograd.detect_anomaly, which looks for NaN in the gradient of each of PyTorch's "
    "own calls; with check_nan=False it runs compiled"
)
#: the warning for a function that runs in eager mode
CACHED = (
    "runs in eager mode within torch.nn.utils.parametrize.cached(), which keeps the parametrized tensors of the first "
    "call within; a program computes them once a call without it"
)
_VMAP = torch._C._dispatch_key_parse("VmapMode")  # of batched backwards
_is_included = torch._C._dispatch_tls_is_dispatch_key_included


def is_transformed() -> bool:
    """Whether a `torch.func` transform, a batched backward (`is_grads_batched=True`), a level of forward-mode
    differentiation, a dispatch mode or a tracer is active."""
    return (
        forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
        or _is_included(_VMAP)
        or bool(recorder())
    )


def acts_on_calls() -> bool:
    """Whether a transform or a mode is active. TorchDynamo, which guards function modes, asks for transforms alone."""
    may = (
        acted_on()
        or forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
        or _is_included(_VMAP)
    )
    return may and (is_transformed() or bool(function_modes()))


def finds_anomalies() -> bool:
    """Whether `torch.autograd.detect_anomaly` looks for NaN in each gradient."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def check_untransformed(tensors: Iterable[Any]) -> None:
    """Check that no transform would be lost in a graph's call. tensors: its arguments and parameters.

    Raises:
        GraphInputError: one is batched, or differentiated in forward mode; or a tracer or a mode is active.
    """
    if name := recorder() or function_modes():
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


def is_cached(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether `cached()` is active, and one of some modules, or of those inside, is parametrized."""
    return bool(parametrize._cache_enabled) and any(
        parametrize.is_parametrized(inner) for module in modules for inner in module.modules()
    )


@contextmanager
def without_outer_cache(name: str) -> Iterator[None]:
    """Around `build()` of the graph `name`.

    Raises:
        GraphTraceError: `cached()` is active, and `build()` reads a parametrized tensor.
    """
    if not parametrize._cache_enabled:
        yield
        return
    outer, parametrize._cache = parametrize._cache, {}
    try:
        yield
        if parametrize._cache:
            raise GraphTraceError(
                f"{here()}: {name} is called within torch.nn.utils.parametrize.cached(), which keeps the parametrized "
                "tensors of the first call for later ones, and a program computes them at each call. Leave it out, or "
                "write it in build(): a program computes each one once."
            )
    finally:
        parametrize._cache = outer

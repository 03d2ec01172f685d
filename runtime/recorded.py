"""What acts on PyTorch's calls, or records them: tracers and modes of others. A program's run is none of these calls,
so it would be left out, and a tracer would take its results for constants."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

#: modes of gflow's, and the one with which AOTAutograd checks a compiled program's first run
_OUR_OWN = ("gflow.", "torch._functorch._aot_autograd.runtime_wrappers")
#: the function mode of a default device, which a program has in its signature
_DEVICE = "torch.utils._device"
_depth = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state


def acted_on() -> bool:
    """Whether `recorder` or `function_modes` may name something; they take longer."""
    return bool(_depth() or _functions()) or _tracing() is not None


def recorder() -> str:
    """The name of a tracer, or of the dispatch modes, that act on PyTorch's calls; empty where nothing does."""
    if _tracing() is not None:
        return "torch.jit.trace"
    if not _depth():
        return ""
    kinds = [type(mode) for mode in _get_current_dispatch_mode_stack()]
    return ", ".join(kind.__name__ for kind in kinds if not kind.__module__.startswith(_OUR_OWN))


def function_modes() -> str:
    """The names of the modes of others that act on calls of PyTorch's functions (`TorchFunctionMode`); empty where none
    does."""
    if not _functions() or not torch._C._is_torch_function_mode_enabled():
        return ""
    kinds = [type(mode) for mode in _get_current_function_mode_stack()]
    return ", ".join(k.__name__ for k in kinds if not k.__module__.startswith((*_OUR_OWN, _DEVICE)))

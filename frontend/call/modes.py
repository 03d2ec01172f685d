"""Saves and restores PyTorch's modes of this thread around a compilation.

`torch.no_grad`, `torch.autocast` and mode classes restore the previous mode in `__exit__`, which is Python code: an
interrupt at its first instruction leaves the mode set for the rest of the thread. A trace enters many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
_FLAGS = [n for n in vars(dispatch) if n.startswith("_is_in_") and type(vars(dispatch)[n]) is bool]
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """The gradient mode, autocast by device type, the excluded Python dispatch keys, and the numbers of mode objects
    on the stacks of function and dispatch modes."""

    functions: Any
    excluded: list[bool]
    gradients: bool
    autocast: list[tuple[bool, torch.dtype]]
    depths: tuple[int, int]
    flags: list[bool]

    @classmethod
    def current(cls) -> Modes:
        c: Any = torch._C
        functions = c._get_torch_function_state()
        with c.DisableTorchFunction():  # modes of the author do not receive these calls
            return cls(
                functions,
                [c._dispatch_tls_is_dispatch_key_excluded(key) for key in _KEYS],
                torch.is_grad_enabled(),
                [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES],
                (c._len_torch_function_stack(), c._len_torch_dispatch_stack()),
                [vars(dispatch)[name] for name in _FLAGS],
            )

    def restore(self) -> None:
        """Set these modes, and remove mode objects that were entered since."""
        c: Any = torch._C
        while c._len_torch_function_stack() > self.depths[0]:
            c._pop_torch_function_stack()
        while c._len_torch_dispatch_stack() > self.depths[1]:
            top: Any = dispatch._get_current_dispatch_mode()
            dispatch._pop_mode(
                getattr(top, "_dispatch_key", None) or getattr(top, "_mode_key", None)
            )
        vars(dispatch).update(zip(_FLAGS, self.flags, strict=True))
        for key, excluded in zip(_KEYS, self.excluded, strict=True):
            c._dispatch_tls_set_dispatch_key_excluded(key, excluded)
        with c.DisableTorchFunction():
            for device, (enabled, dtype) in zip(_DEVICES, self.autocast, strict=True):
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            c._set_grad_enabled(self.gradients)
        c._set_torch_function_state(self.functions)

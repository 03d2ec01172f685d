"""Which functions run while a graph is traced."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from gflow.tracing.context.watch import Infos, Watcher
from gflow.tracing.data.values import TraceOp
from gflow.tracing.program.modules import is_traced


class FrameRecorder(Watcher):
    """Records the code of all functions on the stack of each op and each call of a module, with their globals.
    Optimizers are excluded, since they have guards of their own.

    outside: code of the functions that call `build()` and optimizers.
    """

    def __init__(self, outside: Collection[CodeType]) -> None:
        self.outside = outside
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self._unnamed: dict[int, weakref.ref[torch.nn.Module]] = {}

    def op(self, op: TraceOp) -> None:
        if op.loc.phase != "optimizer":
            self._look()

    def unnamed_module(self, module: torch.nn.Module) -> None:
        self._look()
        self._unnamed.setdefault(id(module), weakref.ref(module))

    def unnamed_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """The modules that were called although no walk over Python state had found them, with names for messages.
        Modules that `build()` itself has made, and has dropped or made with traced parameters, are left out."""
        for reference in self._unnamed.values():
            module = reference()
            if module is not None and not any(
                map(is_traced, (*module.parameters(), *module.buffers()))
            ):
                yield type(module).__name__, module

    def module_begins(self, path: str, module: torch.nn.Module, inputs: Infos) -> None:
        self._look()
        # its forward may record no op, such as a dropout with probability 0
        forward = getattr(type(module), "forward", None)
        if isinstance(forward, FunctionType):
            self.codes.setdefault(forward.__code__, forward.__globals__)

    def _look(self) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code not in self.outside:
            code = frame.f_code
            if code not in self.codes:
                self.codes[code] = frame.f_globals
            frame = frame.f_back

"""Which functions run while a graph is traced."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from gflow.tracing.context.watch import Infos, Watcher
from gflow.tracing.data.values import TraceOp


class FrameRecorder(Watcher):
    """Records the code of all functions on the stack of each op and each call of a module, with their globals.
    Optimizers are excluded, since they have guards of their own.

    outside: code of the functions that call `build()` and optimizers.
    """

    def __init__(self, outside: Collection[CodeType]) -> None:
        self.outside = outside
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self._seen: list[FrameType] = []

    def op(self, op: TraceOp) -> None:
        if op.loc.phase != "optimizer":
            self._look()

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

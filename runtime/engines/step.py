"""Running a part of a program that another engine compiled, on tensors in the program's memory."""

from __future__ import annotations

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import EngineStep, TensorRef
from gflow.dialects.program.form import unpacked

from ..failures import explain, where
from ..sizes import fixed
from ..steps.host_step import HostStep, Locate
from .base import Copies, EngineCode
from .load import load_code


class EngineCall(HostStep):
    """A region of an engine, ready to run. copies: what the latest run had to copy."""

    step: EngineStep

    def __init__(self, step: EngineStep, n: N, compiled: dict[int, EngineCode]) -> None:
        """n: the program's size. compiled: code of steps that is the same for all sizes, by the steps' ids."""
        self.step, self.label = step, step.label
        self.to_arguments = any(r.place.space == "arg" for r in step.outputs)
        code = compiled.get(id(step))
        if code is None:
            given = unpacked(step.code)
            if step.numbers:
                given = given.decode().format(*fixed(step.numbers, n)).encode()
            code = load_code(step.engine, given)
            if not step.numbers:
                compiled[id(step)] = code
        self._code = code
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor | None] = []

    @property
    def copies(self) -> Copies:
        """Counts of the engine's operands and results that were copied."""
        return self._code.copies

    def refs(self) -> list[TensorRef]:
        return [*self.step.inputs, *self.step.outputs]

    def bound(self) -> list[torch.Tensor]:
        return [*self._inputs, *(t for t in self._outputs if t is not None)]

    def bind(self, locate: Locate, size: N = 0) -> None:
        self._inputs = [locate(r) for r in self.step.inputs]
        self._outputs = [locate(r) for r in self.step.outputs]

    def unbind(self) -> None:
        self._inputs, self._outputs = [], []

    def run(self) -> None:
        self.writes = self.has_run = False
        try:
            self._code.run(self._inputs, self._outputs, self._begin_to_write)
        except Exception as error:
            explain(error, where(self.step.label))
            raise
        self.has_run = True

    def _begin_to_write(self) -> None:
        self.writes = True

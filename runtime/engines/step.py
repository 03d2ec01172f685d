"""Runs a part of a program that another engine compiled, on tensors in the program's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import EngineStep, TensorRef
from gflow.dialects.program.form import unpacked

from ..failures import explain, where
from ..sizes import fixed
from ..steps.host_step import HostStep, Locate
from ..steps.watched import Watched
from ..tensors import addresses_of
from .base import Copies, EngineCode
from .load import load_code
from .onnx_models import with_values


class Model:
    """What an engine compiles of a step, for a size of `n`: at once, or once its frozen inputs are known."""

    def __init__(self, step: EngineStep, n: N) -> None:
        text = unpacked(step.code)
        if step.numbers:
            text = text.decode().format(*fixed(step.numbers, n)).encode()
        self._step, self._text = step, text
        self._watched: Watched | None = None
        self._code: EngineCode | None = None if step.frozen else load_code(step.engine, text)

    @property
    def copies(self) -> Copies:
        """The copies of the latest run."""
        return Copies() if self._code is None else self._code.copies

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None],
        on_write: Callable[[], None],
    ) -> None:
        """Run once; the model is compiled again if values of frozen inputs have changed."""
        if self._step.frozen:
            values = {n: inputs[n] for n in self._step.frozen}
            tensors = list(values.values())
            places = addresses_of(tensors)
            if self._watched is None or not self._watched.same(tensors, places):
                self._watched = None
                watched = Watched(tensors, places)
                self._code = load_code(self._step.engine, with_values(self._text, values))
                self._watched = watched
            inputs = [x for n, x in enumerate(inputs) if n not in values]
        assert self._code is not None
        self._code.run(inputs, outputs, on_write)


class EngineCall(HostStep):
    """A region of an engine, ready to run. copies: what the latest run had to copy."""

    step: EngineStep

    def __init__(self, step: EngineStep, n: N, compiled: dict[int, Model]) -> None:
        """n: the program's size. compiled: models of steps that are the same for all sizes, by the steps' ids."""
        self.step, self.label = step, step.label
        self.to_arguments = any(r.place.space == "arg" for r in step.outputs)
        model = compiled.get(id(step)) or Model(step, n)
        if not step.numbers:
            compiled[id(step)] = model
        self._model = model
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor | None] = []

    @property
    def copies(self) -> Copies:
        """Counts of the engine's operands and results that were copied."""
        return self._model.copies

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
            self._model.run(self._inputs, self._outputs, self._begin_to_write)
        except Exception as error:
            explain(error, where(self.step.label))
            raise
        self.has_run = True

    def _begin_to_write(self) -> None:
        self.writes = True

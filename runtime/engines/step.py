"""Runs a part of a program that another engine compiled, on tensors in the program's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import EngineStep, TensorRef
from gflow.dialects.program.form import unpacked

from ..failures import explain, where
from ..sizes import fixed
from ..steps.host_step import HostStep, Locate
from ..steps.watched import Watched
from ..tensors import addresses_of
from .base import Copies, EngineCode, NotFinite
from .load import load_code
from .onnx_models import with_values


class Model:
    """The model of a step for one dynamic size. With frozen inputs it is compiled at the first run, when these are
    known.

    If the step has an exact model, the other one runs until its probe is not finite (`NotFinite`).
    """

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

    def code_of(self, user: object) -> EngineCode | None:
        """The code, if memory is attached to it for `user`."""
        return None if self._code is None or self._code.user is not user else self._code

    def use_exact(self) -> None:
        """Run the exact model from now on."""
        self._text, self._watched = unpacked(self._step.exact), None
        if not self._step.frozen:
            self._code = load_code(self._step.engine, self._text)

    def code(self, frozen: Sequence[torch.Tensor], places: list[int]) -> EngineCode:
        """The code for frozen inputs at the addresses `places`; compiled again if their values have changed."""
        if self._step.frozen and (self._watched is None or not self._watched.same(frozen, places)):
            self._watched = None
            watched = Watched(frozen, places)
            values = dict(zip(self._step.frozen, frozen))
            self._code = load_code(self._step.engine, with_values(self._text, values))
            self._watched = watched
        assert self._code is not None
        return self._code


class EngineCall(HostStep):
    """A region that an engine runs.

    copies: the bytes that the latest run copied. handed: the outputs that stay in the engine's memory, for `take`.
    """

    step: EngineStep
    _places: list[int]
    _frozen: list[torch.Tensor]
    _operands: list[torch.Tensor]
    _results: list[torch.Tensor | None]

    def __init__(
        self, step: EngineStep, n: N, compiled: dict[int, Model], handed: Collection[int] = ()
    ) -> None:
        """n: the program's dynamic size. compiled: models of steps that do not depend on it, by the steps' ids."""
        self.step, self.label = step, step.label
        self.to_arguments = any(r.place.space == "arg" for r in step.outputs)
        model = compiled.get(id(step)) or Model(step, n)
        if not step.numbers:
            compiled[id(step)] = model
        self._model = model
        left = [n for n in range(len(step.inputs)) if n not in step.frozen]
        self._left = [step.inputs[n] for n in left]
        self._handed, self._given = frozenset(handed), dict[int, torch.Tensor]()
        # by memory space and number: the operands and results in it
        self._at: dict[tuple[str, int], list[tuple[bool, int, TensorRef]]] = {}
        for written, refs in ((False, self._left), (True, step.outputs)):
            for n, ref in enumerate(refs):
                if written and n in self._handed:
                    continue
                self._at.setdefault(ref.place[:2], []).append((written, n, ref))
        self._fixed = {step.inputs[n].place[:2] for n in step.frozen}
        self.unbind()

    @property
    def copies(self) -> Copies:
        """The bytes of operands and results that the latest run copied."""
        return self._model.copies

    def refs(self) -> list[TensorRef]:
        frozen = [self.step.inputs[n] for n in self.step.frozen]
        written = [r for n, r in enumerate(self.step.outputs) if n not in self._handed]
        return [*frozen, *self._left, *written]

    def bound(self) -> list[torch.Tensor]:
        written = [x for x in self._results if x is not None]
        return [*self._frozen, *self._operands, *written]

    def take(self, n: int) -> torch.Tensor:
        """Output `n` of the latest run. It can be taken once, and the caller has the only reference to it."""
        return self._given.pop(n)

    def bind(self, locate: Locate, size: N = 0) -> None:
        self.unbind()
        self._frozen = [locate(self.step.inputs[n]) for n in self.step.frozen]
        self._places = addresses_of(self._frozen)
        self._operands = [locate(r) for r in self._left]
        self._results = [
            None if n in self._handed else locate(r) for n, r in enumerate(self.step.outputs)
        ]

    def rebind(self, locate: Locate, moved: set[tuple[str, int]], size: N = 0) -> None:
        # a written argument may share memory with another operand after the move
        if self.to_arguments or not self._fixed.isdisjoint(moved):
            return self.bind(locate, size)
        code = self._model.code_of(self._user)
        for place in moved:
            for written, n, ref in self._at.get(place, ()):
                x = locate(ref)
                if written:
                    self._results[n] = x
                else:
                    self._operands[n] = x
                if code is not None:
                    (code.result if written else code.operand)(n, x)

    def unbind(self) -> None:
        self._user = object()  # a new user: memory is attached at the next run
        self._frozen, self._places, self._operands, self._results = [], [], [], []
        self._given.clear()

    def run(self) -> None:
        self.writes = self.has_run = False
        try:
            try:
                self._run_code()
            except NotFinite:
                self._model.use_exact()
                self._run_code()
        except Exception as error:
            explain(error, where(self.step.label))
            raise
        self.has_run = True

    def _run_code(self) -> None:
        code = self._model.code(self._frozen, self._places)
        if code.user is not self._user:
            code.attach(self._user, self._operands, self._results)
        if code.user is self._user:
            self.writes = True
            code.infer()
        else:
            made = code.run(self._operands, self._results, self._begin_to_write)
            self._given.update((n, made[n]) for n in self._handed)

    def _begin_to_write(self) -> None:
        self.writes = True

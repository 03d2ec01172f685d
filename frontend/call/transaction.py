"""One call of a graph is atomic: it has its full effect or none.

A call changes state in this order: optimizers get their first state (`Setup`); the program writes parameters, buffers,
optimizer state, counters; the step is counted; schedules step. An exception may come between any two bytecodes:
Ctrl-C, a time limit, an error of a scheduler. The flag `done` of the run decides: if it is set, the rest of the call
is completed, and the exception is raised then. Otherwise all changes are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gflow.runtime.interrupts import HalfDone, held

from .branching import Branching, OtherTruth
from .first_step import FirstStep, Setup
from .modes import Modes


class Run(Protocol):
    """The part of a call that makes its changes. done: whether it is complete."""

    done: bool


class ScheduleBefore:
    """A snapshot of a scheduler and of the parameter groups of its optimizer, before a step."""

    def __init__(self, scheduler: Any) -> None:
        self._dicts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._add(scheduler)
        optimizer = getattr(scheduler, "optimizer", None)
        for group in getattr(optimizer, "param_groups", ()):
            self._keep(group)
            for key, value in group.items():
                if key != "params" and isinstance(value, torch.Tensor):
                    self._tensors.append((value, value.clone()))

    def _add(self, scheduler: Any) -> None:
        own = getattr(scheduler, "__dict__", None)
        if own is None:
            return
        self._keep(own)
        for key, value in own.items():
            if type(value) is list:
                self._lists.append((value, list(value)))
                if key == "_schedulers":
                    for inner in value:
                        self._add(inner)

    def _keep(self, live: dict[str, Any]) -> None:
        self._dicts.append((live, dict(live)))

    def undo(self) -> None:
        """Restore the snapshot. It can be repeated."""
        for live, saved in self._dicts:
            live.update(saved)
            for key in [k for k in live if k not in saved]:
                del live[key]
        for items, before in self._lists:
            items[:] = before
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)


@dataclass
class Call:
    """The calls of one graph, which run one at a time.

    Attributes: steps: the number of completed calls. setup: undoes the first state of optimizers, until a step has
    been made from it. drop: removes the program that was compiled for it. hooked: undoes the changes of hooks that run
    before the step. modes: PyTorch's modes before a compilation. branching: what runs of
    the current call have told of conditions on values. broken: why no call can be made.
    """

    name: str
    schedulers: Sequence[Any]
    steps: int = 0
    called: bool = False
    setup: Setup | None = None
    drop: Callable[[], None] = lambda: None
    hooked: Setup | None = None
    modes: Modes | None = None
    branching: Branching | None = None
    broken: str = ""
    _run: Run | None = None
    _gradients: bool = True
    _goal: int = 0
    _scheduled: tuple[int, ScheduleBefore | None] = field(default=(0, None))

    def prepare(self, setup: Setup) -> None:
        """Called before a program is compiled; until a step is made, `setup` can be undone."""
        self.drop = lambda: None
        self.setup = setup

    def begin(self, run: Run) -> None:
        """Called before `run` begins; it is not `done`."""
        self._goal = self.steps + 1
        self._scheduled = (0, None)
        self._gradients = torch.is_grad_enabled()
        self._run = run

    def finish(self) -> None:
        """Complete the call after the run. It can be repeated if it is interrupted."""
        self.setup = self.hooked = None
        self.called = True
        self.steps = self._goal
        if self.schedulers:
            self._schedule()
        self._run = None

    def _schedule(self) -> None:
        number, before = self._scheduled
        for k, scheduler in enumerate(self.schedulers):
            if k < number:
                continue
            if before is not None:  # it was interrupted in its step
                before.undo()
            before = ScheduleBefore(scheduler)
            self._scheduled = (k, before)
            scheduler.step()
            before = None
            self._scheduled = (k + 1, None)

    def branches(self, found: OtherTruth) -> None:
        """Undo a run that has found another truth of a condition than its program is for."""
        self.settle(found)
        if self.branching is None:
            self.branching = Branching()
        self.branching.add(found, self.name)

    def settle(self, error: BaseException, whole: bool = False) -> None:
        """After an exception: complete the call, or undo what it had begun. whole: the call ends, so the changes of
        hooks before the step are undone, too."""
        with held():
            if self.modes is not None:
                self.modes.restore()
                if whole:
                    self.modes = None
            run = self._run
            if run is not None:  # an interrupt may come where it is set back
                torch._C._set_grad_enabled(self._gradients)
            if isinstance(run, FirstStep) and run.begun and not run.done:
                run.commit()
            if run is not None and run.done:
                try:
                    self.finish()
                except Exception as failure:
                    self._unscheduled(error, failure)
            else:
                if self.setup is not None and self.setup.undo():
                    self.drop()
                if whole and self.hooked is not None:
                    self.hooked.undo()
                    self.hooked = None
                if isinstance(error, HalfDone):
                    self.broken = str(error)
            self.setup = self._run = None
            if whole:
                self.branching = None

    def _unscheduled(self, error: BaseException, failure: Exception) -> None:
        """Undo the step of a scheduler that has failed, and make the steps of the others."""
        number, before = self._scheduled
        if before is not None:
            before.undo()
        kind = type(self.schedulers[number]).__name__
        text = (
            f"{self.name}: step {self.steps} has taken place, but lr_sch number {number} ({kind}) has failed and "
            f"is as it was before its step() ({type(failure).__name__}: {failure})"
        )
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(text)
        self._scheduled = (number + 1, None)
        try:
            self._schedule()
        except Exception as another:
            self._unscheduled(error, another)

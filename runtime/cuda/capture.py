"""A call as one CUDA graph.

The first call runs step by step. The second call is captured. Later calls launch the graph.

An argument or result that has moved is used in place: the launches in the graph get its address. This cannot be where
a step of PyTorch has the address (a product of cuBLAS): an input that moves is copied to a buffer of the graph from
then on, a moved parameter makes the graph anew, and a result is copied out of the graph's buffer, so that the caller
may keep it. If these copies take longer than launching all steps one by one, there is no graph.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from gflow.dialects.program import AtenStep, CollectiveStep, Program

from ..device import DeviceError
from ..tensors import addresses_of
from .binding import ALIGNMENT, SMALL, Arguments
from .device import Captured, Launcher
from .launches import LaunchTable, waits

_log = logging.getLogger("gflow")

#: the most captures of an executable, besides one for each input whose address changes
_MOST = 16
#: seconds of the host to begin a step or a copy, and to give a launch of the graph another address
_BEGIN, _UPDATE = 5e-6, 2e-6


class Steps(Protocol):
    """The part of an executable that `Graphs` uses."""

    program: Program
    binding: Arguments
    code: LaunchTable
    done: bool

    @property
    def host_uses(self) -> frozenset[tuple[str, int]]:
        """The arguments and results that steps of the host read or write."""

    def take_results(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Allocate the results. A result that aliases an argument is that argument's tensor."""

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Write the addresses of arguments and results into all steps."""

    def run_steps(self) -> None:
        """Launch all steps, and set `done`."""


class Graphs:
    """Captures an executable as a CUDA graph, and decides when to capture it again.

    problem: why calls cannot run as a graph; "" if they can. fixed: why launches in the graph cannot get other
    arguments; "" if they can.
    """

    def __init__(self, executable: Steps, device: Launcher, wanted: bool) -> None:
        self.executable, self._device = executable, device
        self.problem = "" if wanted and not waits() else "it is switched off"
        self.fixed = ""
        program = executable.program
        if not self.problem and not device.captures:
            self.problem = f"{device.where} has no graphs"
        for step in program.steps:
            if isinstance(step, CollectiveStep):
                self._give_up(f"it works with other ranks ({step.label})")
                break
            if isinstance(step, AtenStep) and '"s":' in step.args:
                self._give_up(f"{step.overload} reads a number from the device ({step.label})")
                break
        self._fresh = [i for i, r in enumerate(program.results) if r.alias is None]
        uses = executable.host_uses
        #: arguments whose addresses stay in the graph, and results that are copied out of it
        self._kept = [
            i for i in range(len(program.arguments)) if ("arg", i) in uses or self._costs(i)
        ]
        self._free: list[int] = []  # inputs that may be used in place wherever they are
        self.copied = [i for i in self._fresh if ("result", i) in uses]
        self._buffered: set[int] = set()  # inputs that are copied
        self._seen: list[int] | None = None  # where the arguments were; 0 for those
        self._bound: list[int] = []  # where they were when they were last bound for the graph
        self._version = -1
        self._captured: Captured | None = None
        self._captured_at: list[int] = []
        self._own: list[tuple[int, torch.Tensor]] = []  # the graph's buffers of copied results
        self._captures = 0
        self._settle()

    def drop(self) -> None:
        """Drop the graph, since memory that it refers to has been freed."""
        self._captured, self._own = None, []

    def run(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Launch the graph and return the results. None: the caller has to run step by step."""
        if self.problem:
            return None
        seen = addresses_of(args)
        if self._buffered:
            seen = [0 if i in self._buffered else at for i, at in enumerate(seen)]
        before, self._seen = self._seen, seen
        if before is None:
            return None
        executable = self.executable
        known = self._captured is not None and self._version == executable.binding.version
        if known and (seen == self._bound or self._moves_only(args, seen)):
            self._bound = seen
            bound = executable.binding.bind_again(args)
        else:
            bound = self._bind(args, seen, before)
        if self._captured is None:
            return None
        results = executable.take_results(bound)
        executable.place(bound, self._placed(results) if self._own else results)
        if executable.code.moved and not self._update():
            return None
        self._captured.launch()
        for i, own in self._own:
            results[i].copy_(own)
        return results

    def _moves_only(self, args: Sequence[torch.Tensor], seen: list[int]) -> bool:
        """Whether only inputs have moved that are used in place, before and now."""
        expected, made, where = self._bound.copy(), self.executable.binding.made, self._device.where
        for i in self._free:
            at = seen[i]
            if at != expected[i]:
                if at % ALIGNMENT or i in made or args[i].device != where:
                    return False
                expected[i] = at
        return expected == seen

    def _bind(
        self, args: Sequence[torch.Tensor], seen: list[int], before: list[int]
    ) -> Sequence[torch.Tensor]:
        """Bind arguments that have moved, and capture the graph if there is none for them."""
        binding, arguments = self.executable.binding, self.executable.program.arguments
        moved = {i for i in self._kept if arguments[i].role == "input" and seen[i] != before[i]}
        if moved:
            self._buffered |= moved
            self._seen = seen = [0 if i in moved else at for i, at in enumerate(seen)]
            self._captured = None
        bound = binding.bind(args, self._buffered)
        if self._captured is None or self._kept_at(bound) != self._captured_at:
            self._capture(bound)
        self._bound, self._version = seen, binding.version
        return bound

    def _kept_at(self, bound: Sequence[torch.Tensor]) -> list[int]:
        return addresses_of([bound[i] for i in self._kept])

    def _placed(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that steps write: the results, or the graph's buffers of them."""
        placed = list(results)
        for i, own in self._own:
            placed[i] = own
        return placed

    def _capture(self, bound: Sequence[torch.Tensor]) -> None:
        """Capture the graph for these tensors, if that is possible."""
        executable = self.executable
        self._captured = None
        self._captures += 1
        if self._captures > _MOST + len(executable.program.arguments):
            self._give_up(f"tensors other than inputs moved in {_MOST} calls")
            return
        results = executable.take_results(bound)
        self._own = [(i, torch.empty_like(results[i])) for i in self.copied]
        executable.place(bound, self._placed(results))
        try:
            captured = self._device.capture(executable.run_steps)
            executable.done = False  # they were noted
        except RuntimeError as error:
            self._give_up(str(error).split("\n")[0])
            return
        executable.code.moved.clear()
        if captured.fixed and not self.fixed:
            self._fix(captured.fixed)
            if not self.problem:
                self._capture(bound)
            return
        self._captured, self._captured_at = captured, self._kept_at(bound)

    def _update(self) -> bool:
        """Give the graph's launches the addresses that have changed; returns whether the device took them."""
        assert self._captured is not None
        moved = self.executable.code.moved
        self._device.ready()
        try:
            for launch in () if self.fixed else moved.values():  # else all are back where they were
                self._captured.update(launch)
        except DeviceError as error:
            self._fix(str(error))
            self.drop()
            return False
        moved.clear()
        return True

    def _fix(self, reason: str) -> None:
        """Keep the addresses of all arguments and results in the graph from now on."""
        self.fixed = reason
        self._kept, self.copied = [*range(len(self.executable.program.arguments))], self._fresh
        self._settle()
        _log.info("%s copies its results out of its CUDA graph: %s", self.executable.program.name, reason)  # fmt: skip

    def _costs(self, i: int) -> bool:
        """Whether a copy of an input takes less time than giving all launches another address."""
        argument, users = self.executable.program.arguments[i], self.executable.code.users("arg", i)
        copy = _BEGIN + self._device.copy_seconds(argument.type.nbytes)
        return argument.role == "input" and users * _UPDATE > copy

    def _settle(self) -> None:
        """Find the free inputs; small ones may be on the CPU. Give the graph up if the copies of results take longer
        than launching the steps one by one."""
        program = self.executable.program
        kept = {*self._kept}
        inputs = (i for i, a in enumerate(program.arguments) if a.role == "input")
        self._free = [
            i for i in inputs if i not in kept and program.arguments[i].type.nbytes > SMALL
        ]
        nbytes = sum(program.results[i].type.nbytes for i in self.copied)
        copies = self._device.copy_seconds(nbytes) + _BEGIN * len(self.copied)
        if self.copied and copies > _BEGIN * len(program.steps):
            self._give_up(
                f"copies of its results ({nbytes >> 10:,} KiB) take longer than its {len(program.steps)} launches"
            )

    def _give_up(self, reason: str) -> None:
        self.problem = self.problem or reason
        self._captured, self._own = None, []
        _log.info("%s runs step by step, not as a CUDA graph: %s", self.executable.program.name, reason)  # fmt: skip

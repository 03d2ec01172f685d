"""A call as one CUDA graph.

The first call runs step by step. The second call is captured. Later calls launch the graph while the captured tensors
keep their addresses. An input that arrives at another address is copied to a buffer of the graph from then on.
Parameters, state, and inputs that a loop refills are thus used in place; other inputs cost a copy. Results are copied
out of the graph's buffers, so the caller may keep them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from gflow.dialects.program import AtenStep, CollectiveStep, Program

from ..tensors import addresses_of
from .binding import Arguments
from .device import Launcher
from .launches import waits

_log = logging.getLogger("gflow")

#: the most captures of an executable, besides one for each input whose address changes
_MOST = 16


class Steps(Protocol):
    """The part of an executable that `Graphs` uses."""

    program: Program
    binding: Arguments
    done: bool

    def take_results(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Allocate the results. A result that aliases an argument is that argument's tensor."""

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Write the addresses of arguments and results into all steps."""

    def run_steps(self) -> None:
        """Launch all steps, and set `done`."""


class Graphs:
    """Captures an executable as a CUDA graph, and decides when to capture it again.

    problem: why calls cannot run as a graph; "" if they can.
    """

    def __init__(self, executable: Steps, device: Launcher, wanted: bool) -> None:
        self.executable, self._device = executable, device
        self.problem = "" if wanted and not waits() else "it is switched off"
        if not self.problem and not device.captures:
            self.problem = f"{device.where} has no graphs"
        for step in executable.program.steps:
            if isinstance(step, CollectiveStep):
                self._give_up(f"it works with other ranks ({step.label})")
                break
            if isinstance(step, AtenStep) and '"s":' in step.args:
                self._give_up(f"{step.overload} reads a number from the device ({step.label})")
                break
        arguments = executable.program.arguments
        self._inputs = [i for i, a in enumerate(arguments) if a.role == "input"]
        self._copied: set[int] = set()
        self._seen: list[int] | None = None  # where the arguments were; 0 for copied ones
        self._bound: list[int] = []  # where they were when they were last bound for the graph
        self._version = -1
        self._launch: Callable[[], None] | None = None
        self._captured_at: list[int] = []
        self._results: list[torch.Tensor] = []
        self._captures = 0

    def drop(self) -> None:
        """Drop the graph, since memory that it refers to has been freed."""
        self._launch, self._results = None, []

    def run(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Launch the graph and return the results. None: the caller has to run step by step."""
        if self.problem:
            return None
        seen = [*addresses_of(args)]
        for i in self._copied:
            seen[i] = 0
        before, self._seen = self._seen, seen
        if before is None:
            return None
        binding = self.executable.binding
        same = self._version == binding.version
        if same and self._launch is not None and seen == self._bound:
            bound = binding.bind_again(args)
        else:
            for i in self._inputs:
                if seen[i] != before[i]:
                    self._copied.add(i)
                    seen[i], self._launch = 0, None
            bound = binding.bind(args, self._copied)
            at = addresses_of(bound)
            if self._launch is None or at != self._captured_at:
                if not self._capture(bound):
                    return None
                self._captured_at = at
            self._bound, self._version = seen, binding.version
        assert self._launch is not None
        self._launch()
        fresh = self.executable.take_results(bound)
        for r, result, own in zip(self.executable.program.results, fresh, self._results):
            if r.alias is None:
                result.copy_(own)
        return fresh

    def _capture(self, bound: Sequence[torch.Tensor]) -> bool:
        """Capture the graph for these tensors; returns whether there is one."""
        executable = self.executable
        self._captures += 1
        if self._captures > _MOST + len(self._inputs):
            self._give_up(f"tensors other than inputs moved in {_MOST} calls")
            return False
        results = executable.take_results(bound)
        own = [
            t if r.alias is not None else torch.empty_like(t)
            for r, t in zip(executable.program.results, results)
        ]
        executable.place(bound, own)
        try:
            self._launch = self._device.capture(executable.run_steps)
            executable.done = False  # they were noted
        except RuntimeError as error:
            self._give_up(str(error).split("\n")[0])
            return False
        self._results = own
        return True

    def _give_up(self, reason: str) -> None:
        self.problem = self.problem or reason
        self._launch, self._results = None, []
        _log.info("%s runs step by step, not as a CUDA graph: %s", self.executable.program.name, reason)  # fmt: skip

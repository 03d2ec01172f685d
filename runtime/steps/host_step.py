"""The base of steps that the host runs: ATen calls, collectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import Step, TensorRef

Locate = Callable[[TensorRef], torch.Tensor]


class HostStep(ABC):
    """One step, ready to run: a `Part` on tensors.

    `bind` sets the tensors. It need not be called again while their addresses stay the same.

    writes, has_run: the progress of the latest run: has begun to write, is complete. to_arguments: whether the step
    writes to arguments. draws: whether it draws random numbers.
    """

    step: Any
    label: str
    count = 1
    writes = has_run = to_arguments = draws = False

    @abstractmethod
    def refs(self) -> list[TensorRef]:
        """All tensors that it reads or writes."""

    @abstractmethod
    def bound(self) -> list[torch.Tensor]:
        """The bound tensors, in the order of `refs`."""

    @abstractmethod
    def bind(self, locate: Locate, size: N = 0) -> None:
        """Bind tensors. size: the program's dynamic size, if it has one."""

    def rebind(self, locate: Locate, moved: set[tuple[str, int]], size: N = 0) -> None:
        """Bind tensors in arguments and results that have moved again; each is a space and a number."""
        self.bind(locate, size)

    @abstractmethod
    def unbind(self) -> None:
        """Drop the references to all tensors."""

    @property
    def torn(self) -> bool:
        """Whether it may have written a part of its results to arguments."""
        return self.writes and not self.has_run and self.to_arguments

    def prepare(self) -> None:
        """Prepare for the next run."""
        self.writes = self.has_run = False

    @abstractmethod
    def run(self) -> None:
        """Run the step. Errors name its source in the author's program."""

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """The step, with the function that runs it."""
        yield self.step, self.run

    def undo(self) -> None:  # noqa: B027 - most draw nothing
        """Restore the generator that the latest run drew from."""

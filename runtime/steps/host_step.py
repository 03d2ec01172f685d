"""What steps that the host runs have in common: calls of PyTorch, collectives."""

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

    `bind` puts tensors in; it need not be called again while they stay where they are.

    writes, has_run: how far the latest run has come: begun to write, done. to_arguments: it writes to arguments.
    draws: it draws random numbers.
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
        """The tensors that were put in, as `refs`."""

    @abstractmethod
    def bind(self, locate: Locate, size: N = 0) -> None:
        """Put tensors in. size: the program's, if it has one."""

    @abstractmethod
    def unbind(self) -> None:
        """Let go of all tensors."""

    @property
    def torn(self) -> bool:
        """Whether it may have written into arguments without having run to its end."""
        return self.writes and not self.has_run and self.to_arguments

    def prepare(self) -> None:
        """It is to run once more."""
        self.writes = self.has_run = False

    @abstractmethod
    def run(self) -> None:
        """Run it; errors say where in the author's program it comes from."""

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Its step, and what runs it."""
        yield self.step, self.run

    def undo(self) -> None:  # noqa: B027 - most draw nothing
        """Put back the generator that the latest run drew from."""

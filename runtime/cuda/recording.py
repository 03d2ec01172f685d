"""The base of devices without hardware: records steps for graphs, and replays them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ..device import Span
from ..steps.host_step import HostStep
from .device import Launch
from .launcher import LaunchingDevice


class Recorder(LaunchingDevice):
    """Runs steps at once, or records them during `capture`. Tensors are on the CPU.

    spans: the memory that steps use. Recorded steps use the memory that was set when they were recorded.
    """

    where = torch.device("cpu")
    captures = checks = True

    def __init__(self) -> None:
        self.spans: Sequence[Span] = ()
        self._noted: list[tuple[Callable[[Any], None], Any]] | None = None

    def placed(self, spans: Sequence[Span]) -> None:
        self.spans = spans

    def report(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64)

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def stream(self) -> int:
        return 0

    def wait_for(self, stream: int) -> None:
        pass

    def wait(self, mark: float) -> None:
        pass

    def delay(self, seconds: float) -> None:
        pass

    def reached(self, mark: float) -> bool:
        return False

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None:
        pass

    def begin(self, run: Callable[[Any], None], item: Launch | HostStep) -> None:
        """Run an item, or record it with its present arguments."""
        if self._noted is None:
            run(item)
        elif isinstance(item, Launch):
            self._noted.append((run, replace(item, words=item.words.copy())))
        else:
            self._noted.append((run, copy.copy(item)))

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record the steps that `run` begins; returns a function that runs them again."""
        noted: list[tuple[Callable[[Any], None], Any]] = []
        self._noted = noted
        try:
            run()
        finally:
            self._noted = None

        spans = self.spans

        def again() -> None:
            before, self.spans = self.spans, spans
            for begin, item in noted:
                begin(item)
            self.spans = before

        return again

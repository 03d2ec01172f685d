"""The base of devices without hardware: records steps for graphs, and replays them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..device import Span
from ..steps.host_step import HostStep
from .device import Captured, Launch
from .launcher import LaunchingDevice


class Recorder(LaunchingDevice):
    """Runs steps at once, or records them during `capture`. Tensors are on the CPU.

    spans: the memory that steps use.
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

    def enter(self) -> None:
        pass

    def ready(self) -> None:
        pass

    def leave(self, before: None) -> None:
        pass

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

    def copy_seconds(self, nbytes: int) -> float:
        return 0.0

    def capture(self, run: Callable[[], None]) -> Captured:
        """Record the steps that `run` begins."""
        noted: list[tuple[Callable[[Any], None], Any]] = []
        self._noted = noted
        try:
            run()
        finally:
            self._noted = None
        return Recording(noted)


class Recording:
    """Recorded steps; a `Captured`."""

    def __init__(self, noted: list[tuple[Callable[[Any], None], Any]]) -> None:
        self.fixed = ""
        self._noted = noted
        self.launch: Callable[[], None] = self._run
        self._launches = {item.parameters: item for _, item in noted if isinstance(item, Launch)}

    def _run(self) -> None:
        for begin, item in self._noted:
            begin(item)

    def update(self, launch: Launch) -> None:
        self._launches[launch.parameters].words[:] = launch.words

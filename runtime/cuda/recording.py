"""Graphs for devices that stand in for a GPU: what was begun is noted, and begun again as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..aten_step import AtenCall
from .device import Launch, Span


class Recorder:
    """`begin` runs things at once, or notes them while `capture` is at work.

    spans: the memory that steps work in; a graph's steps in the memory that they were noted with.
    """

    def __init__(self) -> None:
        self.spans: Sequence[Span] = ()
        self._noted: list[tuple[Callable[[Any], None], Any]] | None = None

    def placed(self, spans: Sequence[Span]) -> None:
        self.spans = spans

    def begin(self, run: Callable[[Any], None], item: Launch | AtenCall) -> None:
        """Run an item, as it is now."""
        if self._noted is None:
            run(item)
        elif isinstance(item, Launch):
            self._noted.append((run, replace(item, words=item.words.copy())))
        else:
            self._noted.append((run, copy.copy(item)))

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What `run` begins, to be begun again."""
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

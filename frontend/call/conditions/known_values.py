"""The condition of a program that was made for values of arguments and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.tracing.data.trace import Trace
from gflow.tracing.program.interpreter import Steps


class KnownValuesGuard:
    """Computes what a trace has read of such values (`Trace.known`) for a call, and compares it."""

    def __init__(self, trace: Trace) -> None:
        known = trace.known
        assert known is not None
        positions = {entry.value: n for n, entry in enumerate(trace.inputs)}
        self._answers = known.answers
        self._inputs = [
            (positions.get(i.value), trace.input_leaves.get(i.value), i.tensor)
            for i in known.inputs
        ]
        wanted = {a.value for a in known.answers}
        self._steps = Steps(known.ops, [i.value for i in known.inputs], wanted)
        self._slots = [self._steps.slots[a.value] for a in known.answers]

    def first_change(self, arguments: Sequence[Any], leaves: Sequence[Any]) -> str | None:
        """The first value that is not that of the trace, as text; None if all are.

        Args:
            arguments: the program's, where they are tensors of the graph.
            leaves: of the call.
        """
        values: list[Any] = [
            leaves[leaf] if leaf is not None else tensor if at is None else arguments[at]
            for at, leaf, tensor in self._inputs
        ]
        try:
            with torch._C._DisableAutocast():
                self._steps.run(values, {})
        except (RuntimeError, IndexError) as error:  # an op refuses the values, as the trace will
            return str(error).partition("\n")[0]
        for slot, asked in zip(self._slots, self._answers):
            found = asked.question(values[slot])
            if not asked.is_still(found):
                return f"{asked.name} ({asked.loc.file}:{asked.loc.line}) is {found}, which was {asked.answer}"
        return None

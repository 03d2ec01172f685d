"""What a trace has read of values that follow from integers and masks from outside: the condition of a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .values import SourceLoc, TraceInput, TraceOp, TraceValue


@dataclass(frozen=True)
class Answer:
    """A question about a tensor's values, and its answer in the trace.

    Args:
        name: of the question, for messages.
        loc: where it was asked.
    """

    value: TraceValue
    question: Callable[[torch.Tensor], Any]
    answer: Any
    name: str
    loc: SourceLoc

    def is_still(self, found: Any) -> bool:
        """Whether another call has the same answer: 0.0 differs from -0.0, and NaN equals NaN."""
        if self.value.dtype.is_floating_point or self.value.dtype.is_complex:
            return repr(found) == repr(self.answer)
        return bool(found == self.answer)


@dataclass
class Known:
    """The program is for these answers.

    Args:
        ops: those that compute the tensors, in order.
        inputs: what they read.
    """

    answers: list[Answer] = field(default_factory=list)
    ops: list[TraceOp] = field(default_factory=list)
    inputs: list[TraceInput] = field(default_factory=list)

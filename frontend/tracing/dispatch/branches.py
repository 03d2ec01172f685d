"""Conditions on values that a program computes: `if not torch.isfinite(x).all()` in `build()`.

Python asks for a truth, which differs between calls. The trace goes on with the one of the call that is traced, and
the program checks it before it updates anything. If a call's is the other one, the call runs the program for that one
(`call.branching`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflow.dialects.ops.structure import BRANCH

from ..data.branches import Branch
from ..data.values import TraceValue, values_in
from .failures.assertions import fail_if
from .failures.pruning import draws, needed_ops
from .known_values import KnownValues

#: the most questions of one trace; a loop until a condition holds may ask for as many as it likes
_MOST = 64


class Branches:
    """The truths for which a trace in progress is made.

    Args:
        leaf: the tensor of the call that an input stands for.
        given: the truths of the call that are known, in the order of the questions.
    """

    def __init__(
        self,
        recorder: Any,
        leaf: Callable[[TraceValue], Tensor | None],
        given: Sequence[bool] = (),
    ) -> None:
        self.recorder, self.given = recorder, given
        self.values = KnownValues(recorder, leaf, every=True)
        self.taken: list[Branch] = []

    def take(self, fake: Tensor) -> bool | None:
        """The truth of a traced tensor of one bool, which the program checks; None if no program can be made for it: it
        is not on the CPU, exists only after the program, or is drawn at random; or there are too many."""
        number = len(self.taken)
        late = self.recorder.value_of(fake) in self.recorder.late
        if late or fake.device.type != "cpu" or number >= _MOST or self._is_drawn(fake):
            return None
        truth = self.given[number] if number < len(self.given) else self._computed(fake)
        loc = self.recorder.locator.here()
        message = (
            f"condition {number} of the program, at {loc.file}:{loc.line}, is {truth} for the values that it was "
            f"traced for, and {not truth} for these; trace it for them"
        )
        fail_if(~fake if truth else fake, BRANCH, message)
        self.taken.append(Branch(truth, loc, message))
        return truth

    def _is_drawn(self, fake: Tensor) -> bool:
        """Whether a truth follows from random numbers alone, as that of leaving a layer out does."""
        ops = needed_ops(self.recorder.ops, [self.recorder.value_of(fake)], lambda op: False)
        read = {v for op in ops for v in values_in((op.args, op.kwargs))}
        inputs = {i.value for i in self.recorder.inputs if i.role != "constant"}
        return any(map(draws, ops)) and inputs.isdisjoint(read)

    def _computed(self, fake: Tensor) -> bool:
        """The truth in the call that is traced; False where it cannot be told."""
        generator = torch.default_generator.get_state()
        try:
            real = self.values.of(fake)
        finally:
            torch.default_generator.set_state(generator)
        if real is None:
            return False
        with self.recorder.apart():
            return bool(real)

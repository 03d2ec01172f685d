"""What of a frozen graph is computed once, and which tensors it reads at each call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gflow.call.plans.plan import Plan
from gflow.compiler.reports.visual.page import byte_text
from gflow.execution.frozen import unfrozen, written
from gflow.runtime.composed.frozen import Frozen

_SHOWN = 12


@dataclass(frozen=True)
class FrozenWeights:
    """Of a frozen graph (`config.freeze()`).

    computed: the tensors that the prologue reads. results, bytes: how many tensors it computes of them, and the bytes
    that these take beside them. runs: how often it has run: once, and again after each change. read: the frozen tensors
    that a call reads as they are. unfrozen: by name, why a tensor is none.
    """

    computed: tuple[str, ...]
    results: int
    bytes: int
    runs: int
    read: tuple[str, ...]
    unfrozen: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"Frozen: {self.results} tensors ({byte_text(self.bytes)}) computed of {len(self.computed)} parameters, "
            f"buffers and captured tensors, {self.runs} times so far; {len(self.read)} are read as they are."
        ]
        for why, count in Counter(self.unfrozen.values()).items():
            names = [name for name, given in self.unfrozen.items() if given == why]
            more = f", and {count - _SHOWN} more" if count > _SHOWN else ""
            lines.append(f"  not frozen, since {why}: {', '.join(names[:_SHOWN])}{more}")
        return "\n".join(lines)


def frozen_weights(plan: Plan) -> FrozenWeights | None:
    """That of a plan; None where its graph is not frozen."""
    options = plan.compiled.options
    if options is None or not options.passes.freeze:
        return None
    inputs, updated = plan.trace.inputs, written(plan.trace)
    lasting = [i for i in inputs if i.role in ("parameter", "buffer", "constant")]
    left = {i.name: why for i in lasting if (why := unfrozen(i, updated))}
    run = plan.compiled.run
    if not isinstance(run, Frozen):
        return FrozenWeights(
            (), 0, 0, 0, tuple(i.name for i in lasting if i.name not in left), left
        )
    kept = (inputs[n] for n in run.given if 0 <= n < len(inputs))
    read = tuple(i.name for i in kept if i.value.id in plan.trace.frozen)
    constants = run.constants
    return FrozenWeights(
        constants.names, len(constants.program.results), constants.bytes, constants.runs, read, left
    )

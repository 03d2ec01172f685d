"""`graph.explain_recompiles()`: each compilation of a graph, and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gflow.dialects.records import record
from gflow.tracing.program.modules import ModuleTable

from .expected import Described, difference
from .plan import Plan

#: the number of compilations that a graph records
_KEPT = 256
#: the maximal number of modules or parameters in one reason
_NAMED = 3
#: names of the parts of a key besides the arguments and the modules' modes
_MODES = (
    "the modules that are checkpointed",
    "whether gradients are recorded",
    "autocast on the CPU",
    "autocast on CUDA",
    "autocast's cache",
    "TF32",
    "the default dtype",
    "hooks of saved tensors",
    "torch.autograd.detect_anomaly",
    "torch.nn.utils.parametrize.cached",
    "the default device",
)


@record
class Compilation:
    """One compilation.

    Attributes: when: the local time at which it was complete. seconds: tracing and compiling, including failed
    attempts. reason: the difference to all earlier programs. sizes: the dynamic dimensions of its inputs, with their
    range; "" if there are none.
    """

    graph: str
    when: datetime
    seconds: float
    reason: str
    sizes: str = ""

    def __str__(self) -> str:
        served = f" [serves {self.sizes}]" if self.sizes else ""
        return f"{self.when:%H:%M:%S} {self.graph}, {self.seconds:.2f} s: {self.reason}{served}"


class Recompiles(tuple[Compilation, ...]):
    """Compilations, in order; printed one a line."""

    def __repr__(self) -> str:
        if not self:
            return "no compilations"
        return "\n".join(f"{n}. {c}" for n, c in enumerate(self, 1))

    __str__ = __repr__


@dataclass
class Compilations:
    """The compilations of a graph so far. cleared: how often all its programs were dropped at once."""

    found: list[tuple[Compilation, Described, tuple[Any, ...]]] = field(default_factory=list)
    cleared: int = 0

    def add(
        self, made: Compilation, given: Described, modes: tuple[Any, ...], cleared: int
    ) -> None:
        """Record a compilation."""
        self.found.append((made, given, modes))
        del self.found[:-_KEPT]
        self.cleared = cleared

    def reason(
        self,
        given: Described,
        modes: tuple[Any, ...],
        table: ModuleTable,
        alike: Sequence[Plan],
        cleared: int,
        leaves: Sequence[Any],
    ) -> str:
        """Why a call that is about to be compiled needs a program. alike: the programs of its signature, which are not
        valid for it. leaves: of the call."""
        if not self.found:
            return "the first call"
        if cleared != self.cleared:
            return "all programs were dropped: a setting, an optimizer, or a parameter or module was changed"
        if alike:
            return (
                "; ".join(_changes(alike, leaves))
                or "a tensor or hyperparameter that it was made for is another"
            )
        before = [earlier for _, earlier, _ in self.found]
        same_inputs = [known for _, earlier, known in self.found if earlier == given]
        same_modes = [earlier for _, earlier, known in self.found if known == modes]
        if modes in same_inputs:
            return "its program was dropped, as others were used later; config.set_cache_size() keeps more"
        if same_modes:
            return difference(given, same_modes)
        reasons = [_unlike(modes, (same_inputs or [self.found[-1][2]])[-1], table)]
        if not same_inputs:
            reasons.insert(0, difference(given, before))
        return "; ".join(filter(None, reasons)) or "the graph's modes are others"


def _changes(alike: Sequence[Plan], leaves: Sequence[Any]) -> Iterable[str]:
    found = [plan.first_change(leaves) for plan in alike]
    reasons = [r for r in found if r] or [r for plan in alike if (r := plan.python.why())]
    return dict.fromkeys(reasons[:1])


def _unlike(modes: tuple[Any, ...], known: tuple[Any, ...], table: ModuleTable) -> str:
    """The differences of modes, with the old and the new one."""
    reasons: list[str] = []
    trained, before = modes[0], known[0]
    count = len(table.modules)
    if len(trained) == len(before):
        changed = [i for i, (a, b) in enumerate(zip(trained, before)) if a != b]
        parameters = [s.name for s in table.slots if s.role == "parameter"]
        for i in changed[:_NAMED]:
            now = trained[i]
            if i < count:
                name = table.names.get(id(table.modules[i]), "") or "the model"
                words = ("eval", "train") if now else ("train", "eval")
                reasons.append(f"module {name!r} went from {words[0]} to {words[1]} mode")
            elif i - count < len(parameters):
                reasons.append(
                    f"parameter {parameters[i - count]!r} has requires_grad={bool(now)}, it had {not now}"
                )
        if len(changed) > _NAMED:
            reasons.append(f"{len(changed) - _NAMED} more modules or parameters likewise")
    else:
        reasons.append("the modules are others")
    for what, now, was in zip(_MODES, modes[1:], known[1:]):
        if now != was:
            reasons.append(f"{what}: {now}, it was {was}")
    return "; ".join(reasons)

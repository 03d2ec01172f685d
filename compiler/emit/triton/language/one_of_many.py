"""Kernels that combine several launches of one source: each program runs a part of one of them.

This module has their parameters, and the choice of the launch by program id:

def KERNEL(a_0, a_1, M): …   →   if program < begin_1:    begin = program * 0, a = a_0
                                 else:                    begin = begin_1,     a = a_1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gflow.dialects.program import Place

from ..program_builder import Held


@dataclass
class Passed:
    """The parameters and arguments of a kernel that replaces several launches of one source.

    varying: the parameters whose arguments differ between launches; each becomes one parameter per launch (`name_0`,
    `name_1`, …). given: for each parameter of the source, the first parameter that has the same arguments and type in
    all launches; often itself. parameters, args: those of the combined kernel.
    """

    varying: list[str]
    given: list[str]
    parameters: dict[str, str] = field(default_factory=dict)
    args: list[int | float | Place] = field(default_factory=list)

    def add(self, name: str, kind: str, value: int | float | Place) -> None:
        """Add a parameter."""
        self.parameters[name] = kind
        self.args.append(value)

    @property
    def bytes(self) -> int:
        """The size of the parameters in bytes."""
        return sum(4 if kind == "i32" else 8 for kind in self.parameters.values())


def passed(group: Sequence[Held]) -> Passed:
    """The parameters with equal arguments in all launches, and the names of the others, which `add_varying` adds."""
    kinds = group[0].source.parameters
    names, first = list(kinds), group[0].args
    columns = [tuple(m.args[i] for m in group) for i in range(len(names))]
    # an updated tensor is also read, so a parameter may equal an earlier one in every launch
    same = [
        next(
            j
            for j in range(i + 1)
            if columns[j] == columns[i] and kinds[names[j]] == kinds[names[i]]
        )
        for i in range(len(names))
    ]
    own = [i for i in range(len(names)) if same[i] == i]
    varying = [i for i in own if any(value != first[i] for value in columns[i])]
    found = Passed([names[i] for i in varying], [names[i] for i in same])
    for i in own:
        if i not in varying:
            found.add(names[i], kinds[names[i]], first[i])
    return found


def add_varying(to: Passed, number: int, m: Held) -> None:
    """Add the parameters of launch `number` that differ between launches."""
    values = dict(zip(m.source.parameters, m.args))
    for name in to.varying:
        to.add(f"{name}_{number}", m.source.parameters[name], values[name])


def choice(varying: Sequence[str], low: int, high: int, depth: int = 1) -> list[str]:
    """Lines that choose among launches low … high by program id. Launch n begins at program `begin_<n>`."""
    indent = "    " * depth
    if high - low == 1:
        begin = f"begin_{low}" if low else "program * 0"
        return [f"{indent}begin = {begin}", *(f"{indent}{n} = {n}_{low}" for n in varying)]
    middle = (low + high) // 2
    return [
        f"{indent}if program < begin_{middle}:",
        *choice(varying, low, middle, depth + 1),
        f"{indent}else:",
        *choice(varying, middle, high, depth + 1),
    ]

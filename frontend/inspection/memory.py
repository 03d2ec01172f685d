"""`graph.memory()`: the memory of a compiled graph."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from gflow.call.plans.plan import Plan
from gflow.compiler.ir.tables import ratio, table
from gflow.compiler.memory.planned import PlannedValue, PlanReading, read_plan
from gflow.compiler.reports.visual.memory import memory_page
from gflow.compiler.reports.visual.page import byte_text
from gflow.dialects.records import record
from gflow.runtime.sizes import fixed_type

from .notebook import memory_html
from .stage import planned

_SHOWN = 12
_ROLES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer_state": "optimizer state",
    "input": "inputs",
    "constant": "captured tensors",
    "scalar": "numbers",
}


@record
class MemorySummary:
    """Bytes of a compiled graph. `str()` gives a table.

    Attributes: arena: the block of memory for all values inside of a step, including scratch of kernels. lower_bound:
    the minimum for these values in this order of steps. arguments: tensors that the graph reads and updates and that
    belong to others, by role. constants: constants of the program. results: new tensors that a call returns.
    """

    name: str
    arena: int
    lower_bound: int
    arguments: dict[str, int]
    constants: int
    results: int
    plan: PlanReading = field(repr=False)

    @property
    def parameters(self) -> int:
        """Bytes of parameters."""
        return self.arguments.get("parameter", 0)

    @property
    def optimizer_state(self) -> int:
        """Bytes of the optimizers' state."""
        return self.arguments.get("optimizer_state", 0)

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.arena + sum(self.arguments.values()) + self.constants + self.results

    @property
    def largest(self) -> list[PlannedValue]:
        """The values in the arena, the largest first; each with its op and source line."""
        return sorted(self.plan.values, key=lambda v: (-v.size, v.start))

    def html(self, path: str | Path) -> Path:
        """Write the arena over time as a page for a browser, which needs no network."""
        target = Path(path)
        target.write_text(memory_page(self.plan), encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        """For notebooks: the parts as a bar, and the text."""
        return memory_html(self, {_ROLES.get(r, r): size for r, size in self.arguments.items()})

    def __str__(self) -> str:
        over = f"{ratio(self.arena, self.lower_bound)} of the least possible" * bool(
            self.lower_bound
        )
        rows = [("arena", byte_text(self.arena), over)]
        rows += [("  least possible", byte_text(self.lower_bound), "")]
        for role, size in self.arguments.items():
            rows.append((_ROLES.get(role, role), byte_text(size), ""))
        rows += [("constants", byte_text(self.constants), "")] * bool(self.constants)
        rows += [("results", byte_text(self.results), ""), ("total", byte_text(self.total), "")]
        steps = len(self.plan.steps)
        parts = [f"{self.name}: memory, in {steps} steps", "", table(rows, "<><")]
        heavy = [("value", "bytes", "steps", "from")]
        for v in self.largest[:_SHOWN]:
            heavy.append(
                (f"{v.op}: {v.type}", byte_text(v.size), f"{v.start}-{v.end}", str(v.source))
            )
        if len(heavy) > 1:
            parts += ["", "The largest values in the arena:", "", table(heavy, "<><<")]
        return "\n".join([*parts, ""])


def memory(plan: Plan, name: str) -> MemorySummary:
    """The summary of a plan. name: that of the graph."""
    program = plan.compiled.program
    module, function = planned(plan)
    with module.context:
        reading = read_plan(function)
    most = program.size.greatest if program.size is not None else 0
    arguments: dict[str, int] = {}
    for a in program.arguments:
        arguments[a.role] = arguments.get(a.role, 0) + fixed_type(a.type, most).nbytes
    return MemorySummary(
        name,
        program.arena_bytes,
        reading.lower_bound,
        arguments,
        sum(map(len, program.constants)),
        sum(fixed_type(r.type, most).nbytes for r in program.results if r.alias is None),
        reading,
    )

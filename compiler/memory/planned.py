"""A memory plan as plain data: steps in order, and the values in the arena with their live ranges.

It is read from the IR alone (`gflow.buffers`, `gflow.arena_size`, `gflow.lower_bound`), and shown by `--emit=plan` and
`--view-memory`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from gflow.dialects.mlir import func, ir

from ..ir.dynamic_sizes import sized
from ..ir.errors import CompileError
from ..ir.locations import Source, source_of
from ..ir.ssa import Op, read_body
from ..ir.views import extent_bytes, is_view, layouts
from .liveness import last_uses
from .places import places_of
from .plan_check import problems

#: attribute of an op: offset and bytes of its scratch
SCRATCH = "gflow.scratch"


class NotPlanned(CompileError):
    """The function has no memory plan. The message says what to run."""


@dataclass
class PlannedValue:
    """A value in the arena, or an op's scratch: bytes from `offset` on, live from step `start` to `end`, inclusive."""

    offset: int
    size: int
    start: int
    end: int
    op: str
    type: str
    source: Source


@dataclass
class PlannedStep:
    """An op that runs. places: the places of its results."""

    op: str
    operands: list[str]
    results: list[str]
    places: list[str]
    source: Source
    live: int = 0


@dataclass
class PlanReading:
    """A function's memory plan. Sizes are in bytes; `start` and `end` of values are step numbers."""

    name: str
    arena: int
    lower_bound: int
    steps: list[PlannedStep] = field(default_factory=list)
    values: list[PlannedValue] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The end of the last byte that a value uses."""
        return max((v.offset + v.size for v in self.values), default=0)


def read_plan(function: func.FuncOp) -> PlanReading:
    """The memory plan of a function.

    Raises:
        NotPlanned: it has none.
    """
    with sized(function.operation):
        return _read_plan(function)


def _read_plan(function: func.FuncOp) -> PlanReading:
    name = ir.StringAttr(function.attributes["sym_name"]).value
    attributes = function.operation.attributes
    if "gflow.arena_size" not in attributes or "gflow.lower_bound" not in attributes:
        raise NotPlanned(
            f"the function '@{name}' has no memory plan; run --pipeline-for=cpu, or a pipeline that "
            "ends in gflow-plan-memory"
        )
    for problem, op in problems(function):
        raise NotPlanned(f"the memory plan of '@{name}' is not sound: {problem} ('{op.name}')")
    body = read_body(function)
    at = layouts(function, body)
    last = last_uses(body, at)
    arena = ir.IntegerAttr(attributes["gflow.arena_size"]).value
    bound = ir.IntegerAttr(attributes["gflow.lower_bound"]).value
    plan = PlanReading(name, arena, bound)
    names = _names(function, body.arguments)
    running = [o for o in body.ops if o.name != "constant" and not is_view(o, at)]
    numbers = [o.index for o in running]
    for o in body.ops:
        for r in o.results:
            names[r] = f"%{r}"
    begun: set[int] = set()
    for n, o in enumerate(running):
        source = source_of(o.op)
        places = places_of(o.op) or []
        step = PlannedStep(
            label(o),
            [f"{names[v]}: {_short(str(body.types[v]))}" for v in o.operands],
            [f"{names[r]}: {_short(str(body.types[r]))}" for r in o.results],
            [str(place) for place in places],
            source,
        )
        plan.steps.append(step)
        for part, place in zip(o.results, places):
            r = at[
                part
            ].base  # a result may be a part of it; its live range begins with its first part
            if place.space == "arena" and r not in begun:
                begun.add(r)
                end = max(bisect_right(numbers, last.get(r, o.index)) - 1, n)
                plan.values.append(
                    PlannedValue(
                        place.number, extent_bytes(body.types[r], at[r].strides), n, end, step.op,
                        str(body.types[r]), source,
                    )
                )  # fmt: skip
        if SCRATCH in o.op.attributes:
            offset, size = ir.DenseI64ArrayAttr(o.op.attributes[SCRATCH])
            plan.values.append(
                PlannedValue(offset, size, n, n, f"scratch of {step.op}", "bytes", source)
            )
    for number, size in enumerate(_live(plan)):
        plan.steps[number].live = size
    return plan


def label(o: Op) -> str:
    """An op's name; for a fused op, with the ops that it computes."""
    if o.name == "aten":
        return f"aten {ir.StringAttr(o.op.attributes['overload']).value}"
    if o.name == "engine":
        return f"engine {ir.StringAttr(o.op.attributes['engine']).value}"
    if o.name != "fused":
        return o.name
    inner = [
        op.operation.name.removeprefix("gflow.") for op in o.op.regions[0].blocks[0].operations
    ]
    telling = [n for n in inner if n not in _UNTOLD] or [n for n in inner if n != "yield"]
    shown = list(dict.fromkeys(telling))
    more = f" +{len(shown) - 4}" if len(shown) > 4 else ""
    return f"fused {' '.join(shown[:4])}{more}" if shown else "fused"


_UNTOLD = frozenset({"yield", "constant", "broadcast", "reshape", "transpose", "convert", "iota"})


def _names(function: func.FuncOp, arguments: list[int]) -> dict[int, str]:
    """The names of arguments, by value: the author's where there is one."""
    given = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    found = {}
    for i, v in enumerate(arguments):
        has = i < len(given) and "gflow.name" in given[i]
        found[v] = ir.StringAttr(given[i]["gflow.name"]).value if has else f"%arg{i}"
    return found


def _short(ty: str) -> str:
    return ty.removeprefix("tensor<").removesuffix(">")


def _live(plan: PlanReading) -> list[int]:
    """For each step, the live bytes of the arena; overlapping values count once."""
    begins: list[list[PlannedValue]] = [[] for _ in plan.steps]
    for v in plan.values:
        begins[v.start].append(v)
    out: list[int] = []
    live: list[PlannedValue] = []
    for n, new in enumerate(begins):
        live = [v for v in live if v.end >= n] + new
        covered, top = 0, 0
        for v in sorted(live, key=lambda v: v.offset):
            end = v.offset + v.size
            covered += max(end - max(v.offset, top), 0)
            top = max(top, end)
        out.append(covered)
    return out

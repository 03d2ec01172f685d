"""`graph.kernels()`: the generated functions, and their ops."""

from __future__ import annotations

from gflow.call.plans.plan import Plan
from gflow.compiler.ir.attribution import members, ops_of_steps, sources_of
from gflow.compiler.ir.locations import Source
from gflow.compiler.memory.planned import label
from gflow.dialects.program import KernelAddress, KernelStep, LaunchStep, Program
from gflow.dialects.records import record
from gflow.execution.executor import programs_for

from .stage import planned_program


@record
class KernelInfo:
    """A generated function.

    Attributes: source: its text: MLIR, or Python with Triton for a GPU. uses: how often a call of the graph runs it.
    ops: the ops that it computes. sources: their locations in the author's program.
    """

    name: str
    source: str
    uses: int
    ops: tuple[str, ...]
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        places = [str(s) for s in self.sources]
        lines = [f"{self.name}: used {self.uses} ×", *(f"  {op}" for op in self.ops)]
        return "\n".join([*lines, *(f"  from {place}" for place in places)])


def kernels(plan: Plan, target: str | None = None) -> list[KernelInfo]:
    """The kernels of a plan, the most used first. target: compile for this target instead."""
    program = _program(plan, target)
    module, function = planned_program(program)
    texts = {**program.kernels, **{name: k.source for name, k in program.triton.items()}}
    uses: dict[str, int] = dict.fromkeys(texts, 0)
    ops: dict[str, dict[str, None]] = {name: {} for name in uses}
    sources: dict[str, dict[Source, None]] = {name: {} for name in uses}
    with module.context:
        for step, found in zip(program.steps, ops_of_steps(program, function)):
            for one, op in zip(members(step), found):
                for name in _run_by(one):
                    uses[name] = uses.get(name, 0) + 1
                    if op is not None and name in ops:
                        ops[name][label(op)] = None
                        sources[name] |= dict.fromkeys(sources_of(op))
    order = sorted(texts, key=lambda name: -uses[name])
    return [KernelInfo(n, texts[n], uses[n], tuple(ops[n]), tuple(sources[n])) for n in order]


def _run_by(step: object) -> list[str]:
    """The kernel of a step, and the functions that it receives by address: tiles and packing of products."""
    if isinstance(step, KernelStep):
        called = [word.kernel for word in step.words if isinstance(word, KernelAddress)]
        return list(dict.fromkeys([step.kernel, *called]))
    return [step.kernel] if isinstance(step, LaunchStep) else []


def _program(plan: Plan, target: str | None) -> Program:
    own: Program = plan.compiled.program
    if target is None or target == own.target:
        return own
    return programs_for(plan.trace, plan.compiled.options, target, code=False)[0]

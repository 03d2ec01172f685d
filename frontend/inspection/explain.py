"""`graph.explain()`: what the compiler did with a graph, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from gflow.call.plans.plan import Plan
from gflow.compiler import resolve
from gflow.compiler.driver.pass_manager import Pipeline
from gflow.compiler.driver.stages import run_to, stages_of
from gflow.compiler.ir.attribution import members, ops_of_steps, sources_of
from gflow.compiler.ir.locations import Source, source_of
from gflow.compiler.ir.ssa import Op, fused_kind, read_body
from gflow.compiler.ir.tables import table, time_text
from gflow.compiler.memory.planned import label
from gflow.compiler.passes.distribution.propagate import WHY
from gflow.compiler.reports.costs import Report, measure, report
from gflow.compiler.reports.visual.page import byte_text
from gflow.compiler.targets import parse_target
from gflow.dialects.extents import size_of_program
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import AtenStep, Race
from gflow.dialects.records import record
from gflow.lowering import lower
from gflow.lowering.global_view import propagated
from gflow.tracing.data.trace import Trace

from .engines import EngineRegion, Stayed, engines_text, partition_of
from .frozen import FrozenWeights, frozen_weights
from .notebook import text_html
from .pages import write_graph
from .spills import Spill, spills_of, text_of
from .stage import planned

_SHOWN = 20


@record
class Fusion:
    """A kernel that computes several ops: their names and locations."""

    ops: tuple[str, ...]
    sources: tuple[Source, ...]
    kind: str


@record
class Fallback:
    """Calls of an ATen overload: their number, the reason, and their locations."""

    overload: str
    calls: int
    why: str
    sources: tuple[Source, ...]


@record
class Recomputation:
    """An op that is recomputed in the backward: how often, why, and its location."""

    op: str
    times: int
    why: str
    source: Source


@record
class Resharding:
    """An op whose operands are resharded first, or that runs on replicated values: the reason and its location."""

    op: str
    why: str
    source: Source


@record
class Explanation:
    """What the compiler did with a graph. `str()` gives a text.

    Attributes: switches: the settings of its config. pipeline: the passes. costs: kernels, bytes and the roofline time
    before and after the passes. races: how kernels' configurations were chosen by timed comparisons. no_graph: on a
    GPU, why calls are not one CUDA graph; "" if they are, None on other devices. graph_copies: which results are
    copied out of that graph, and why. spills: kernels that spill registers.
    engines: the regions of other engines. stayed: with an engine, the ops that it does not run. frozen: of a frozen
    graph, the parts that are computed once. moved: of a graph of global tensors, the ops whose operands are resharded.
    program: the planned IR, for a target.
    """

    name: str
    switches: dict[str, Any]
    pipeline: str
    fused: list[Fusion]
    aten: list[Fallback]
    recomputed: list[Recomputation]
    costs: Report = field(repr=False)
    notes: list[str] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    no_graph: str | None = None
    graph_copies: str = ""
    spills: list[Spill] = field(default_factory=list)
    engines: list[EngineRegion] = field(default_factory=list)
    stayed: list[Stayed] = field(default_factory=list)
    moved: list[Resharding] = field(default_factory=list)
    frozen: FrozenWeights | None = None
    program: str = field(default="", repr=False)
    target: str = field(default="cpu", repr=False)

    def html(self, path: str | Path) -> Path:
        """Write the planned program as a graph: a page for a browser, which needs no network. Modules can be opened
        and closed; colours show the roofline time, bytes, what runs an op, recomputation and sharding.
        `profile().graph_html()` has measured times."""
        return write_graph(self.program, self.target, path)

    def _repr_html_(self) -> str:
        """For notebooks: the text."""
        return text_html(str(self), f"{self.name}: what the compiler did")

    def __str__(self) -> str:
        switched = ", ".join(f"{k}={v!r}" for k, v in self.switches.items()) or "none set"
        parts = [f"{self.name}\n\nSwitches: {switched}\nPasses: {self.pipeline}"]
        parts.append(self._fused())
        if self.engines or self.stayed:
            parts.append(engines_text(self.engines, self.stayed))
        parts.append(self._aten())
        parts.append(self._recomputed())
        if self.frozen is not None:
            parts.append(str(self.frozen))
        if self.moved:
            parts.append(self._moved())
        if self.races:
            parts.append(self._races())
        if self.spills:
            parts.append(text_of(self.spills))
        if self.no_graph is not None:
            why = f"no, step by step: {self.no_graph}" if self.no_graph else "yes"
            why += f"; {self.graph_copies}" if self.graph_copies else ""
            parts.append(f"As one CUDA graph: {why}.")
        text = str(self.costs).partition("\n\nwarning:")[0].rstrip("\n")
        parts.append(f"Costs before and after the passes:\n\n{text}")
        return "\n\n".join(parts) + "\n"

    def _fused(self) -> str:
        ops = sum(len(f.ops) for f in self.fused)
        if not self.fused:
            return "Fused: nothing."
        rows = [("ops", "kind", "what", "from")]
        ordered = sorted(self.fused, key=lambda f: -len(f.ops))
        for f in ordered[:_SHOWN]:
            names = [f"{n} × {c}" if c > 1 else n for n, c in Counter(f.ops).items()]
            shown = ", ".join(names[:6]) + (f", +{len(names) - 6}" if len(names) > 6 else "")
            rows.append((f"{len(f.ops)}", f.kind, shown, str(f.sources[0]) if f.sources else ""))
        more = f"\n  and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
        return f"Fused: {ops} ops in {len(self.fused)} kernels.\n\n{table(rows, '><<<')}{more}"

    def _aten(self) -> str:
        if not self.aten:
            return "Through PyTorch (ATen): nothing."
        lines = ["Through PyTorch (ATen):", ""]
        for f in self.aten:
            places = list(dict.fromkeys(str(s) for s in f.sources))
            more = f", and {len(places) - 3} more places" if len(places) > 3 else ""
            lines.append(f"  {f.calls} × {f.overload}: {f.why}")
            lines += [f"      {'; '.join(places[:3])}{more}"] * bool(places)
        return "\n".join(lines)

    def _recomputed(self) -> str:
        if not self.recomputed and not self.notes:
            return "Recomputed in the backward: nothing."
        total = sum(r.times for r in self.recomputed)
        lines = [f"Recomputed in the backward: {total} ops.", ""]
        lines += [f"  {note}" for note in self.notes]
        for r in self.recomputed[:_SHOWN]:
            lines.append(f"  {r.times} × {r.op} of {r.source}: {r.why}")
        if len(self.recomputed) > _SHOWN:
            lines.append(f"  and {len(self.recomputed) - _SHOWN} more")
        return "\n".join(lines)

    def _moved(self) -> str:
        lines = [f"Placed otherwise over ranks, or whole: operands of {len(self.moved)} ops.", ""]
        lines += [f"  {m.op} of {m.source}: {m.why}" for m in self.moved[:_SHOWN]]
        more = len(self.moved) - _SHOWN
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)

    def _races(self) -> str:
        rows = [("time", "chosen", "next", "by", "for")]
        measured = [race for race in self.races if race.seconds]
        for race in measured[:_SHOWN]:
            (first, best), *others = race.seconds.items()
            second, behind = others[0] if others else ("", best)
            gain = f"{100 * (behind / best - 1):.1f} %" if best else ""
            rows.append((f"{best * 1e6:.1f} us", first, second, gain, race.label.partition(" ")[0]))
        more = len(measured) - _SHOWN
        rest = f"\n  and {more} more" if more > 0 else ""
        if unmeasured := len(self.races) - len(measured):
            why = "other work had the cores while it was measured. A compilation on an idle machine may choose better"
            if parse_target(self.target).gpu:
                why = "the time for measurements was over (config.enable_autotune(seconds=…)). Later compilations go on"
            rest += f"\n{unmeasured} more by the model: {why}"
        if not measured:
            return rest.lstrip()
        devices = ", ".join(dict.fromkeys(r.device for r in measured))
        return f"Chosen by measuring on {devices} ({len(measured)} steps):\n\n{table(rows, '><<><')}{rest}"


def explain(plan: Plan, name: str, switches: Mapping[str, Any]) -> Explanation:
    """The explanation of a plan. name: that of the graph."""
    size = plan.trace.main.size
    with size_of_program(None if size is None else size.standing(0)):
        return _explained(plan, name, switches)


def _explained(plan: Plan, name: str, switches: Mapping[str, Any]) -> Explanation:
    program = plan.compiled.program
    pipeline = resolve(plan.compiled.options).pipeline
    before = lower(plan.trace.main)
    device = parse_target(program.target).device.name
    costs = measure(before, device)
    recomputed = _checkpointed(before, pipeline)
    regions, stayed = partition_of(
        lower(plan.trace.main, for_onnx=plan.compiled.options.passes.for_onnx), pipeline
    )
    module, function = planned(plan)
    with module.context:
        body = read_body(function)
        by_budget = [o for o in body.ops if "gflow.recomputed" in o.op.attributes]
        again, notes = _counted(by_budget, "the memory budget"), _budget(function)
        aten = _fallbacks(ops_of_steps(program, function), program.steps) + _late(plan.trace)
        fused = [_fusion(o) for o in body.ops if o.name == "fused"]
        compared = report(costs, module, device)
    fused = [f for f in fused if len(f.ops) > 1]
    return Explanation(
        name, dict(switches), pipeline, fused, aten, recomputed + again, compared, notes,
        program.races, getattr(plan.compiled.run, "no_graph", None),
        getattr(plan.compiled.run, "graph_copies", ""), spills_of(program), regions, stayed,
        _moved(plan), frozen_weights(plan), plan.compiled.ir, program.target,
    )  # fmt: skip


def _moved(plan: Plan) -> list[Resharding]:
    """The ops that `gflow-propagate-shardings` reshards for, or that have no sharding rule."""
    if plan.trace.mesh is None:
        return []
    module = propagated(lower(plan.trace.main, whole=True))
    with module.context:
        found = []
        for o in read_body(module.body.operations[0]).ops:
            why = ir.StringAttr(o.op.attributes[WHY]).value if WHY in o.op.attributes else ""
            if "bytes sent" in why or "no sharding rule" in why:
                found.append(Resharding(o.name, why, source_of(o.op)))
        return found


def _fusion(o: Op) -> Fusion:
    inner = [op.operation for op in o.op.regions[0].blocks[0].operations]
    telling = [op for op in inner if op.name not in ("gflow.yield", "gflow.constant")]
    names = tuple(op.name.removeprefix("gflow.") for op in telling)
    return Fusion(names, tuple(sources_of(o)), fused_kind(o.op))


def _fallbacks(ops: list[list[Op | None]], steps: list[Any]) -> list[Fallback]:
    calls: dict[tuple[str, str], list[Source]] = {}
    for step, found in zip(steps, ops):
        for one, op in zip(members(step), found):
            if not isinstance(one, AtenStep):
                continue
            if one.overload == "gflow.draw.default":
                why = "random numbers of eager (eager_random)"
            elif op is None or op.name == "aten":
                why = "the dialect has no op for it"
            else:
                why = f"gflow.{op.name} of this type or form has no generated kernel"
            source = Source("", "", "", 0) if op is None else source_of(op.op)
            calls.setdefault((one.overload, why), []).append(source)
    return [
        Fallback(overload, len(sources), why, tuple(dict.fromkeys(sources)))
        for (overload, why), sources in sorted(calls.items(), key=lambda i: (-len(i[1]), i[0]))
    ]


def _late(trace: Trace) -> list[Fallback]:
    """The ops of the tail."""
    calls: dict[str, list[Source]] = {}
    for op in () if trace.tail is None else trace.tail.ops:
        where = Source(op.loc.phase, op.loc.module, op.loc.file, op.loc.line)
        calls.setdefault(str(op.func), []).append(where)
    why = "its shape depends on values, so it runs after the program"
    return [
        Fallback(overload, len(sources), why, tuple(dict.fromkeys(sources)))
        for overload, sources in calls.items()
    ]


def _checkpointed(module: ir.Module, pipeline: str) -> list[Recomputation]:
    """The recomputations of marked modules; `module` (as traced) is changed."""
    with module.context:
        if not stages_of(Pipeline(pipeline)).get("checkpointed"):
            return []
        before = _places(module)
        run_to(module, pipeline, "checkpointed")
        added = _places(module) - before
    return [
        Recomputation(op, n, "activation checkpointing", source)
        for (op, source), n in added.items()
        if op != "optimization_barrier"
    ]


def _places(module: ir.Module) -> Counter[tuple[str, Source]]:
    found: Counter[tuple[str, Source]] = Counter()
    for view in module.body.operations:
        if isinstance(view, func.FuncOp):
            found.update((label(o), source_of(o.op)) for o in read_body(view).ops)
    return found


def _counted(ops: list[Op], why: str) -> list[Recomputation]:
    counted = Counter((label(o), source_of(o.op)) for o in ops)
    return [Recomputation(op, n, why, source) for (op, source), n in counted.items()]


def _budget(function: func.FuncOp) -> list[str]:
    """The recomputations under a memory budget or a share of the time."""
    attributes = function.operation.attributes
    if "gflow.rematerialized" not in attributes:
        return []
    said = ir.DictAttr(attributes["gflow.rematerialized"])
    numbers = {n: ir.IntegerAttr(said[n]).value for n in ("budget", "arena_before", "arena_after")}
    sizes = {name: byte_text(n) for name, n in numbers.items()}
    if not numbers["budget"]:
        added = time_text(ir.FloatAttr(said["seconds"]).value)
        return [
            f"live values {sizes['arena_before']} without, {sizes['arena_after']} with what is recomputed in {added} "
            "(predicted): config.set_recomputation_time()"
        ]
    return [
        f"memory budget {sizes['budget']}: arena {sizes['arena_before']} without, "
        f"{sizes['arena_after']} with what is recomputed"
    ]

"""The parts of a graph that another engine runs, and the ops that stayed with gflow's kernels, with reasons."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.driver.pass_manager import Pipeline
from gflow.compiler.driver.stages import run_to, stages_of
from gflow.compiler.ir.locations import Source, source_of
from gflow.compiler.ir.ssa import aliases, read_body
from gflow.compiler.memory.planned import label
from gflow.compiler.reports.visual.page import byte_text
from gflow.dialects.marks import STAYS
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.structure import ENGINE
from gflow.dialects.records import record

_SHOWN = 20


@record
class EngineRegion:
    """A region of the program that an engine runs: its ops, and the bytes that it reads and writes, at the largest
    size of dynamic dimensions.

    copied: the bytes that are copied to their places, since XLA returns results in its own memory. Results of
    `build()` that no other op reads are not copied.
    """

    engine: str
    ops: int
    read: int
    written: int
    copied: int = 0


@record
class Stayed:
    """Ops of one kind that stayed with gflow: their number, the reason, and their locations."""

    op: str
    times: int
    why: str
    sources: tuple[Source, ...]


def partition_of(module: ir.Module, pipeline: str) -> tuple[list[EngineRegion], list[Stayed]]:
    """The regions of engines and the ops that stayed; `module` (as traced) is changed."""
    with module.context:
        if not stages_of(Pipeline(pipeline)).get("partitioned"):
            return [], []
        run_to(module, pipeline, "partitioned")
        regions: list[EngineRegion] = []
        stayed: dict[tuple[str, str], list[Source]] = {}
        for view in module.body.operations:
            if not isinstance(view, func.FuncOp):
                continue
            body = read_body(view)
            given = {
                v
                for v, alias in zip(body.returned, aliases(view, body))
                if alias is None and not body.users[v] and body.returned.count(v) == 1
            }
            for o in body.ops:
                if o.name == ENGINE:
                    inner = list(o.op.regions[0].blocks[0].operations)
                    engine = ir.StringAttr(o.op.attributes["engine"]).value
                    copied = [v for v in o.results if engine == "xla" and v not in given]
                    regions.append(
                        EngineRegion(
                            engine,
                            sum(op.operation.name != "gflow.constant" for op in inner) - 1,
                            sum(body.types[v].nbytes for v in o.operands),
                            sum(body.types[v].nbytes for v in o.results),
                            sum(body.types[v].nbytes for v in copied),
                        )
                    )
                elif STAYS in o.op.attributes:
                    why = ir.StringAttr(o.op.attributes[STAYS]).value
                    stayed.setdefault((label(o), why), []).append(source_of(o.op))
    found = [
        Stayed(op, len(sources), why, tuple(dict.fromkeys(sources)))
        for (op, why), sources in stayed.items()
    ]
    return regions, sorted(found, key=lambda s: (-s.times, s.op))


def engines_text(regions: Sequence[EngineRegion], stayed: Sequence[Stayed]) -> str:
    """The partition as text."""
    lines = []
    for r in regions:
        lines.append(
            f"By {r.engine}: {r.ops} ops as one step, which reads {byte_text(r.read)} in place and "
            f"writes {byte_text(r.written)} of results, of which {byte_text(r.copied)} are copied."
        )
    if not regions:
        lines.append("By other engines: nothing.")
    if stayed:
        lines += ["", f"Stayed with gflow: {sum(s.times for s in stayed)} ops.", ""]
        for s in stayed[:_SHOWN]:
            places = list(dict.fromkeys(str(source) for source in s.sources))
            more = f", and {len(places) - 3} more places" if len(places) > 3 else ""
            lines.append(f"  {s.times} × {s.op}: {s.why}")
            lines += [f"      {'; '.join(places[:3])}{more}"] * bool(places)
        if len(stayed) > _SHOWN:
            lines.append(f"  and {len(stayed) - _SHOWN} more kinds")
    return "\n".join(lines)

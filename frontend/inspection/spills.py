"""GPU kernels that spill registers, with the cost model's first choice or at all."""

from __future__ import annotations

from gflow.compiler.ir.tables import table
from gflow.dialects.program import LaunchStep, Program
from gflow.dialects.records import record

_SHOWN = 20


@record
class Spill:
    """A kernel that spills, or whose first choice of configuration would spill.

    Attributes: label: an op that it runs for. first, chosen: configurations. bytes: the spilled bytes of a thread with
    the chosen configuration.
    """

    kernel: str
    label: str
    first: str
    chosen: str
    bytes: int


def spills_of(program: Program) -> list[Spill]:
    """The spilling kernels of a program with machine code, except those that were chosen by measurement."""
    raced = {race.step for race in program.races if race.seconds}
    found: dict[tuple[str, int], Spill] = {}
    for n, step in enumerate(program.steps):
        if not isinstance(step, LaunchStep) or n in raced:
            continue
        code = program.device_code.get(f"{step.kernel}/{step.config}")
        if code is None or not (step.config or code.spills):
            continue
        first, chosen = (str(program.triton[step.kernel].configs[c]) for c in (0, step.config))
        spill = Spill(step.kernel, step.label.partition(" ")[0], first, chosen, code.spills)
        found.setdefault((step.kernel, step.config), spill)
    return list(found.values())


def text_of(spills: list[Spill]) -> str:
    """A table of spills: bytes of a thread, the chosen configuration, the first choice and the kernel."""
    rows = [("bytes", "chosen", "first choice", "kernel")]
    rows += [(str(s.bytes), s.chosen, s.first, s.kernel) for s in spills[:_SHOWN]]
    more = f"\n  and {len(spills) - _SHOWN} more" if len(spills) > _SHOWN else ""
    head = "Spilled registers, of a thread; another configuration than the first where that spills more"
    return f"{head}:\n\n{table(rows, '><<<')}{more}"

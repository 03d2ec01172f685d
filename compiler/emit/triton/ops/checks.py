"""Run-time checks (`gflow.check`): a launch of one program, which writes to memory of the host only if a check fails.

The report keeps the first check that fails until the host has read it. The launch counts runs, so that the error can
say in which call the check failed.
"""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.dialects.program import Place, TritonConfig

from ..language import device_functions
from ..language.parameters import Parameters, indented
from ..program_builder import NAME, Builder, Source

_LINES = [
    "call = tl.load(runs) + 1",
    "tl.store(runs, call)",
    "failed = (tl.load(flag) != 0) & (tl.load(report) == 0)",
    "tl.store(report + 2, call, mask=failed)",
    "tl.store(report + 1, {found}, mask=failed)",
    "tl.store(report, number.to(tl.int64), mask=failed)",
]


def check(b: Builder, o: Op) -> None:
    """Add the launch of a `gflow.check`. If the check fails, it reports to the host; the run continues."""
    number, p = b.check(o), Parameters()
    found = "call * 0"
    p.pointer("flag", "i1", b.place(o.operands[0]))
    if len(o.operands) > 1:
        p.pointer("found", "i64", b.place(o.operands[1]))
        found = "tl.load(found)"
    p.pointer("report", "i64", Place("status", 0, 0))
    p.pointer("runs", "i64", Place("status", 1, 8 * (number - 1)))
    p.types["number"] = "i32"
    p.values.append(number)
    lines = [line.format(found=found) for line in _LINES]
    text = "\n".join([f"def {NAME}({', '.join(p.types)}):", *indented(lines)]) + "\n"
    way = TritonConfig({}, 1, 1)
    source = Source(
        "check", device_functions.source(text, ()), p.types, (way,), ("1",), {}, frozenset()
    )
    b.launch(source, p.values, b.label(o))

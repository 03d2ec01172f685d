"""Steps of `gflow.engine` regions: the region in the format that its engine compiles (StableHLO, ONNX)."""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.program import EngineStep
from gflow.dialects.program.form import packed

from ..ir.frozen import frozen_arguments
from ..ir.ssa import Op
from .placement import Placement


def region(b: Placement, o: Op) -> None:
    """Add the step of a `gflow.engine`."""
    # start-up time: few programs have regions for engines
    from ..engines.forms import region_code

    engine = ir.StringAttr(o.op.attributes["engine"]).value
    frozen = frozen_arguments(b.function, b.body)
    constants = tuple(n for n, v in enumerate(o.operands) if v in frozen)
    found = region_code(engine, o.op)
    b.steps.append(
        EngineStep(
            engine,
            packed(found.code),
            found.numbers,
            tuple(b.ref(v) for v in o.operands),
            tuple(b.ref(r) for r in o.results),
            b.label(o),
            constants,
            packed(found.exact) if found.exact else "",
        )
    )

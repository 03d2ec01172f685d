"""What a library would run in a launch's place: products and convolutions through PyTorch."""

from __future__ import annotations

from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep, LaunchStep, Program

from ...compile import entry_function
from ...ssa import Op
from ...targets import parse_target
from .. import aten_ops
from ..placement import Placement
from .build import build_with
from .builder import Builder


def library_calls(program: Program) -> dict[int, AtenStep]:
    """For launches of a program that a single call can replace: the step's number, and the call.

    That is an op alone, without an epilogue, which takes one launch.
    """
    found = {}
    with make_context():
        module = ir.Module.parse(program.ir)
        function = entry_function(module)
        b = Builder(function, parse_target(program.target).arch)
        build_with(b)
        for ops, begin, end in b.units:
            if len(ops) == 1 and end == begin + 1 and isinstance(program.steps[begin], LaunchStep):
                call = _call(b, ops[0])
                if call is not None:
                    found[begin] = call
    return found


def _call(b: Placement, o: Op) -> AtenStep | None:
    begin = len(b.steps)
    if o.name == "matmul":
        inputs = [b.ref(v) for v in o.operands]
        args = [{"t": 0}, {"t": 1}]
        b.aten(b.label(o), "aten.matmul.default", args, inputs, b.ref(o.results[0]))
    elif o.name.startswith("convolution"):
        aten_ops.convolution(b, o)
    added, b.steps[begin:] = b.steps[begin:], []
    step = added[0] if len(added) == 1 else None
    return step if isinstance(step, AtenStep) else None

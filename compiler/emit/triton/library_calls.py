"""Library calls that can replace launches: products, convolutions and attention by PyTorch's libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import choice_of
from gflow.dialects.program import AtenStep, LaunchStep, Program
from gflow.dialects.records import record

from .. import aten_ops
from ..placement import Placement
from .build import built_again
from .ops import library_attention
from .program_builder import Builder

LIBRARY = "library"


def library_of(name: str) -> str:
    """The value of the field `library` for a contender of autotuning; "" for one that isn't a library's attention."""
    return name.removeprefix(LIBRARY).strip(" ()")


@record
class Instead:
    """Calls by the library's name. Each can replace all launches before step number `end`."""

    end: int
    calls: Mapping[str, AtenStep] = field(default_factory=dict)


def library_calls(program: Program) -> dict[int, Instead]:
    """The calls that can replace launches of a program, by the number of the first launch.

    Only launches of a single op without an epilogue can be replaced.
    """
    found = {}
    with built_again(program) as (_, b, _):
        for ops, begin, end in b.units:
            own = all(isinstance(s, LaunchStep) for s in program.steps[begin:end])
            if len(ops) == 1 and own and not choice_of(ops[0].op).tuned:
                calls = _calls(b, ops[0])
                if calls:
                    found[begin] = Instead(end, calls)
    return found


def _calls(b: Builder, o: Op) -> dict[str, AtenStep]:
    if o.name in ("attention", "attention_grad"):
        named = library_attention.calls(b, o)
        return {f"{LIBRARY} ({name})": step for name, step in named.items()}
    step = _product(b, o)
    return {} if step is None else {LIBRARY: step}


def _product(b: Placement, o: Op) -> AtenStep | None:
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

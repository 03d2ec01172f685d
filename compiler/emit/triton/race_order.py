"""What the cost model expects of each launch, for the order of races."""

from __future__ import annotations

from gflow.compiler.ir.cost import cost_of, seconds
from gflow.dialects.program import Program
from gflow.dialects.records import record

from .build import built_again


@record
class Expected:
    """A launch by the cost model.

    seconds: the roofline time of its op; launches of one op share it. contraction: whether the op is a product, a
    convolution or attention.
    """

    seconds: float
    contraction: bool


def expected_of(program: Program) -> dict[int, Expected]:
    """What the cost model expects of a program's launches, by their numbers."""
    found: dict[int, Expected] = {}
    with built_again(program) as (_, b, _):
        for ops, begin, end in b.units:
            costs = [cost_of(o.op) for o in ops]
            share = sum(seconds(c, b.target.device) for c in costs) / (end - begin)
            launch = Expected(share, any(c.contraction for c in costs))
            found |= dict.fromkeys(range(begin, end), launch)
    return found

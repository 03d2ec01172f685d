"""Assign a place to every value: the arena, the buffer of a result, or the argument that it updates.

Before:

    func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>, %v: tensor<4x4xf32>) -> tensor<8x4xf32> {
      %0 = "gflow.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
      %1 = "gflow.matmul"(%0, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
      %2 = "gflow.tanh"(%1) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %3 = "gflow.matmul"(%2, %v) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      return %3 : tensor<8x4xf32>
    }

After `gflow-fuse{epilogues=false},gflow-materialize,gflow-plan-memory`:

    func.func @f(…) -> tensor<8x4xf32> attributes {gflow.arena_size = 640 : i64, gflow.lower_bound = 640 : i64} {
      %0 = "gflow.fused"(…) … {gflow.buffers = ["arena:0"], …} : …
      %1 = "gflow.matmul"(%0, …) {gflow.buffers = ["arena:512"]} : …
      %2 = "gflow.fused"(%1) … {gflow.buffers = ["arena:512"], …} : …
      %3 = "gflow.matmul"(%2, …) {gflow.buffers = ["result:0"]} : …
      return %3 : tensor<8x4xf32>
    }

Live ranges follow program order. A view extends the live range of its base. A kernel writes into the buffer of an
operand that dies there, if it reads each element of the operand only before it overwrites it. Offsets (in bytes) come
from several strategies, and the smallest arena is kept. The search ends as soon as a strategy reaches
`gflow.lower_bound`, the largest sum of live bytes at any one op, which is a lower bound for every arena in this
order. The strategies:

- `timeline`: allocate and free as the program runs, each buffer in the smallest free block
- `skyline`: from the bottom up, at the lowest place the buffer that lives longest in the time there
- `size`, `lifetime`, `volume` (size × life): the largest first, each at the lowest free offset
- `best-fit`: the largest first, each in the smallest gap

The scratch of a kernel (patches of a convolution, partial sums of threads), as `gflow-select-kernels` stated it, is
planned like a value that is live during that op: `gflow.scratch = [offset, bytes]`.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.errors import PassError
from gflow.compiler.kernel.selection.choice import choice_of
from gflow.compiler.memory.liveness import Buffer, Lives, lives_at_entry, lower_bound
from gflow.compiler.memory.places import set_number, write_places
from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Kept, Pass
from .search import choose
from .strategies import STRATEGIES, without_reuse


@record
class PlanMemoryOptions:
    """Options of gflow-plan-memory."""

    compress: bool = field(
        default=True,
        metadata={"doc": "values with disjoint live ranges may share bytes"},
    )
    strategies: tuple[str, ...] = field(
        default=("timeline", "skyline", "size"),
        metadata={
            "doc": f"any of {', '.join(STRATEGIES)}, in the order in which they are tried; or all"
        },
    )
    improve: int = field(
        default=0,
        metadata={"doc": "steps of a local search, if no strategy reaches the lower bound"},
    )
    time_limit: float = field(
        default=10.0, metadata={"doc": "the time limit of the local search, in seconds"}
    )


def run(function: func.FuncOp, options: PlanMemoryOptions) -> Kept:
    """Assign a place to each value of the function, in bytes of the arena.

    Raises:
        PassError: a strategy is unknown.
    """
    lives, needs, buffers, size, offsets = _planned(function, options)
    write_places(function, lives, size, offsets)
    for (i, need), offset in zip(needs.items(), offsets[len(lives.buffers) :]):
        lives.body.ops[i].op.attributes["gflow.scratch"] = ir.DenseI64ArrayAttr.get([offset, need])
    set_number(function, "lower_bound", lower_bound(buffers))
    return Kept.BODY


def arena_of(function: func.FuncOp) -> int:
    """The bytes of the arena that the pass would plan for a function now."""
    return _planned(function, PlanMemoryOptions())[3]


def _planned(
    function: func.FuncOp, options: PlanMemoryOptions
) -> tuple[Lives, dict[int, int], list[Buffer], int, list[int]]:
    """(the function's values, the scratch in bytes of each op that needs some by the op's number, the buffers of values
    and of scratch, the arena in bytes, the offset of each buffer)."""
    strategies = tuple(STRATEGIES) if options.strategies == ("all",) else options.strategies
    for name in strategies or ("",):
        if name not in STRATEGIES:
            raise PassError(f"no strategy '{name}'; there are {', '.join(STRATEGIES)}, and all")
    lives = lives_at_entry(function, take_over=options.compress)
    needs = {
        o.index: size
        for o in lives.body.ops
        if KERNEL in o.op.attributes and (size := choice_of(o.op).scratch)
    }
    buffers = [*lives.buffers, *(Buffer(size, i, i) for i, size in needs.items())]
    if options.compress:
        size, offsets = choose(buffers, strategies, options.improve, options.time_limit)
    else:
        size, offsets = without_reuse(buffers)
    return lives, needs, buffers, size, offsets


PASS = Pass("gflow-plan-memory", run, PlanMemoryOptions, __doc__ or "")

"""Insert the copies that the memory layout requires, as separate kernels.

After this pass every reshape is a view, and contractions read operands with strides that a GEMM accepts. Every returned
value (or the value that it is a reshape of) is written by an op: into the buffer of the result, or into the storage of
the argument that it updates.

Before, where `%0` is a view of `%x`, and `%1` cannot be a view of `%0`:

    %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 16>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    %2 = "gflow.matmul"(%1, %w) : (tensor<2x16xf32>, tensor<16x4xf32>) -> tensor<2x4xf32>

After:

    %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : …
    %c = "gflow.fused"(%0) ({
    ^bb0(%y: tensor<8x4xf32>):
      "gflow.yield"(%y) …
    }) {kind = "pointwise", …} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "gflow.reshape"(%c) {shape = array<i64: 2, 16>} : …
    %2 = "gflow.matmul"(%1, %w) : …

An update is written in place under three conditions: nothing reads the old value later, the kernel reads each old
element only at the position where it writes, and no `gflow.check` or other step that may fail comes later (so a call
that fails has changed nothing). Otherwise the update is written to a buffer and copied at the end.

Later readers of an update in place see the strides of the argument. If one of them needs a dense operand, it reads a
copy; if several do, the update is written to a buffer instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from gflow.compiler.ir.failing import may_fail
from gflow.compiler.ir.ssa import Body, Op, aliases
from gflow.compiler.ir.views import (
    Layout,
    argument_strides,
    is_view,
    layouts,
    readers,
    written_to_arguments,
)
from gflow.compiler.memory.in_place import OVERWRITES
from gflow.compiler.memory.layouts import readable, writable
from gflow.compiler.memory.liveness import TakesOver, read_layouts
from gflow.compiler.memory.results import owners
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.structure import CHECK, ENGINE
from gflow.dialects.types import NO_KERNELS

from ..base import NoOptions, Pass

#: ATen ops for copies of types without kernels
_CLONE = {
    "overload": "aten.clone.default",
    "args": '[[{"t": 0}], {"memory_format": {"memory_format": "contiguous_format"}}]',
}


def copy_of(value: ir.Value) -> ir.Value:
    """Build a dense row-major copy at the insertion point: a fused op, or an ATen call for types without kernels."""
    ty = builder.type_of(value)
    if ty.dtype in NO_KERNELS:
        return builder.build_op("aten", [value], _CLONE, [ty]).results[0]
    fused = builder.build_op("fused", [value], {"kind": "pointwise"}, [ty])
    block = fused.regions[0].blocks.append(value.type)
    with ir.InsertionPoint(block):
        builder.build_op("yield", [block.arguments[0]], {}, [])
    return fused.results[0]


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Insert the copies that memory needs into the function."""
    body, at = read_layouts(function)
    first = _fix_updates(function, body, at, aliases(function, body))
    if first is not None:
        body, at = read_layouts(function)
    if _fix_operands(body, at):
        body, at = read_layouts(function)
    _fix_results(body, at, aliases(function, body), first or body.terminator)


def _fix_updates(
    function: func.FuncOp, body: Body, at: list[Layout], target: list[int | None]
) -> ir.Operation | None:
    """Copy updates into their arguments at the end, unless their producers can write there. Returns the first copy.

    An update that is an old value itself (two swapped buffers) is copied through a buffer.
    """
    tentative = written_to_arguments(function, body)
    dense = layouts(function, body, {})
    may = TakesOver()
    strides = argument_strides(function, body)
    spared = _copies_spared(body, at, dense, tentative)
    reads = readers(body, at)
    failing = max((o.index for o in body.ops if o.name == CHECK or may_fail(o)), default=-1)
    updated = {body.arguments[alias] for alias in target if alias is not None}
    read_at_the_end = {at[v].base for v in body.returned}
    copies: list[tuple[int, ir.Value]] = []
    first = None
    with ir.InsertionPoint(body.terminator):
        for n, (v, alias) in enumerate(zip(body.returned, target)):
            if alias is None or v == body.arguments[alias]:
                continue
            argument, shape = body.arguments[alias], body.types[v].shape
            if (
                tentative.get(v) == alias
                and spared.get(v, 0) < 2
                and body.producer[v] > failing
                and argument not in read_at_the_end
                and writable(body.ops[body.producer[v]], shape, strides[alias])
                and _in_place(body, at, v, argument, reads.get(argument, []), may)
            ):
                continue
            value = body.values[v]
            if at[v].base in updated:
                with _location(value):
                    value = copy_of(value)
                first = first or value.owner
            copies.append((n, value))
        for n, value in copies:
            with _location(value):
                body.terminator.operands[n] = copy_of(value)
            first = first or body.terminator.operands[n].owner
    return first


def _copies_spared(
    body: Body, at: list[Layout], dense: list[Layout], written: Mapping[int, int]
) -> dict[int, int]:
    """For values with their argument's strides, the operands that must be copied because of the strides. None of these
    copies is needed if the values are dense, and copied at the end."""
    found: dict[int, int] = {}
    for o in body.ops:
        for n, v in enumerate(o.operands):
            base, shape = at[v].base, body.types[v].shape
            if base in written and not readable(o, n, shape, at) and readable(o, n, shape, dense):
                found[base] = found.get(base, 0) + 1
    return found


def _fix_operands(body: Body, at: list[Layout]) -> bool:
    """Copy operands whose layout an op cannot read. Returns whether there are any."""
    copied = False
    for o in body.ops:
        for n, v in enumerate(o.operands):
            if not readable(o, n, body.types[v].shape, at):
                copied = True
                with o.op.location, ir.InsertionPoint(o.op):
                    o.op.operands[n] = copy_of(o.op.operands[n])
    return copied


def _fix_results(
    body: Body, at: list[Layout], target: list[int | None], before: ir.Operation
) -> None:
    """Copy returned values into the buffers of results, unless their producers can write there.

    before: the insertion point of the copies. An old value that is also a result is saved before a copy overwrites it.
    """
    written = {v for v, alias in zip(body.returned, target) if alias is not None}
    with ir.InsertionPoint(before):
        for n, v in enumerate(owners(body, at, target)):
            if target[n] is not None:
                continue
            p = body.producer[v]
            if p >= 0 and _makes(body.ops[p], at) and v not in written:
                written.add(v)
                continue
            value = body.values[body.returned[n]]
            with _location(value):
                body.terminator.operands[n] = copy_of(value)


def _makes(o: Op, at: list[Layout]) -> bool:
    """Whether an op writes its results to memory. Kernels do; views and constants do not."""
    return o.name in OPS and o.name != "constant" and not is_view(o, at)


def _in_place(
    body: Body, at: list[Layout], value: int, argument: int, reads: list[int], may: TakesOver
) -> bool:
    """Whether the producer of `value` may write it into the argument's storage.

    reads: the ops that read the argument.
    """
    p = body.producer[value]
    o = body.ops[p]
    if any(r > p for r in reads):
        return False
    if p not in reads:
        return True
    result = o.results.index(value)
    if o.name == ENGINE:  # an op that reads all operands before it writes
        return True
    return o.name in OVERWRITES and all(
        operand == argument and may(o, n, result)
        for n, operand in enumerate(o.operands)
        if at[operand].base == argument and readable(o, n, body.types[operand].shape, at)
    )


def _location(value: ir.Value) -> ir.Location:
    return ir.Location.unknown() if isinstance(value.owner, ir.Block) else value.owner.location


PASS = Pass("gflow-materialize", run, NoOptions, __doc__ or "")

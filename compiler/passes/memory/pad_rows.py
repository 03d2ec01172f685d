"""Pad the rows of values with long rows of odd length, so that each row begins at a multiple of a vector.

Before, for example with a vocabulary of 50,257:

    %0 = "gflow.matmul"(%x, %w) : (tensor<64x32xbf16>, tensor<32x1001xbf16>) -> tensor<64x1001xbf16>
    %1 = "gflow.fused"(%0) … {kind = "row", …} : (tensor<64x1001xbf16>) -> tensor<64x1001xbf16>
    %2 = "gflow.matmul"(%1, %v) : (tensor<64x1001xbf16>, tensor<1001x32xbf16>) -> tensor<64x32xbf16>

After:

    %0 = "gflow.matmul"(%x, %w) {gflow.padded = array<i64: 1008>} : …
    %1 = "gflow.fused"(%0) … {gflow.padded = array<i64: 1008>, kind = "row", …} : …
    %2 = "gflow.matmul"(%1, %v) : …

Rows of `%0` then have a stride of 1,008 elements, so kernels move 16 bytes at a time, and products read the value in
place. Otherwise each element is a separate access, and large products copy such operands first. The type of a value
does not change. The pass pads values in the arena that only matrix products and fused kernels write and read, if one
of these is a product or a reduction. Elementwise kernels alone need no padding, since they move whole vectors of an
unpadded value, as one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from gflow.compiler.ir.fused import root_of
from gflow.compiler.ir.ssa import Body, Op, fused_kind, read_body
from gflow.compiler.ir.views import (
    IN_PLACE,
    PADDED,
    STEP,
    VIEW_OPS,
    Layout,
    is_view,
    layouts,
    readers,
)
from gflow.compiler.kernel.description import of_runs
from gflow.compiler.memory.layouts import readable
from gflow.compiler.targets import DEVICES
from gflow.dialects.marks import LAUNCH
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass

#: bytes that a thread moves at once, and bytes of a cache line, on any device
_VECTOR, _LINE = (max(sizes) for sizes in zip(*((d.access, d.line) for d in DEVICES.values())))


@record
class PadRowsOptions:
    """Options of gflow-pad-rows."""

    least: int = field(
        default=512,
        metadata={
            "doc": "the fewest bytes of a row; for shorter rows the share of padding is too large"
        },
    )


def run(function: func.FuncOp, options: PadRowsOptions) -> None:
    """Write into the function which values' rows are padded (`gflow.padded`)."""
    body = read_body(function)
    at = layouts(function, body)
    read = readers(body, at)
    fixed = {at[v].base for v in body.returned} | set(body.returned)
    widths = {
        r: width
        for o in body.ops
        if _computes(o) and LAUNCH not in o.op.attributes
        for n, r in enumerate(o.results)
        if at[r].base == r and r not in fixed and not _partial(o, n)
        if (width := _width(body, r, options.least)) and _pays(body, o, read.get(r, ()))
    }
    # if one value is not padded the others may be, except for kernels that would read both
    while widths:
        _write(body, widths)
        wrong = _refused(function, body, at, widths, read)
        if not wrong:
            return
        widths = {r: width for r, width in widths.items() if r not in wrong}
    _write(body, {})


def _computes(o: Op) -> bool:
    """Whether an op is a matrix product, or a fused kernel without another contraction, or changes single elements."""
    if o.name != "fused":
        return o.name in ("matmul", "scaled_matmul", "put")
    root = root_of(o.op)
    products = ("gflow.matmul", "gflow.scaled_matmul")
    return IN_PLACE not in o.op.attributes and (root is None or root.name in products)


def _partial(o: Op, result: int) -> bool:
    """Whether a result holds numbers of runs of rows or columns, which are dense."""
    if o.name != "fused":
        return False
    end = o.op.regions[0].blocks[0].operations[-1].operation
    return of_runs(end.operands[result])


def _width(body: Body, value: int, least: int) -> int:
    """The padded length of rows, in elements; 0 if they need no padding."""
    ty = body.types[value]
    if ty.rank < 2 or ty.numel in (0, ty.shape[-1]):
        return 0
    row = ty.shape[-1] * ty.itemsize
    if row < least or row % _VECTOR == 0:
        return 0
    step = max(STEP, _LINE // ty.itemsize) if row >= 64 * _LINE else STEP
    return -(-ty.shape[-1] // step) * step


def _pays(body: Body, maker: Op, read: Sequence[int]) -> bool:
    """Whether only products and fused kernels access a value, and at least one of them not elementwise."""
    ops = [maker, *(o for i in read if (o := body.ops[i]).name not in VIEW_OPS)]
    return all(map(_computes, ops)) and any(fused_kind(o.op) != "pointwise" for o in ops)


def _refused(
    function: func.FuncOp,
    body: Body,
    before: Sequence[Layout],
    widths: dict[int, int],
    read: dict[int, list[int]],
) -> set[int]:
    """The padded values that a reader does not support."""
    at, wrong = layouts(function, body), set()
    for r in widths:
        for i in read.get(r, ()):
            o = body.ops[i]
            if is_view(o, before) != is_view(o, at):
                wrong.add(r)
            wrong |= {
                r
                for n, v in enumerate(o.operands)
                if before[v].base == r and not readable(o, n, body.types[v].shape, at)
            }
    return wrong


def _write(body: Body, widths: dict[int, int]) -> None:
    for o in body.ops:
        found = [widths.get(r, 0) for r in o.results]
        if any(found):
            o.op.attributes[PADDED] = ir.DenseI64ArrayAttr.get(found)
        elif PADDED in o.op.attributes:
            del o.op.attributes[PADDED]


PASS = Pass("gflow-pad-rows", run, PadRowsOptions, __doc__ or "")

"""Let producers write directly into the result of a concatenation or a copy, so no data is moved.

Before `gflow-fuse`:

    func.func @f(%x: tensor<32x64xf32>, %w: tensor<128x8xf32>) -> tensor<32x8xf32> {
      %0 = "gflow.sin"(%x) : (tensor<32x64xf32>) -> tensor<32x64xf32>
      %1 = "gflow.cos"(%x) : (tensor<32x64xf32>) -> tensor<32x64xf32>
      %2 = "gflow.concatenate"(%0, %1) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
         : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x128xf32>
      %3 = "gflow.matmul"(%2, %w) : (tensor<32x128xf32>, tensor<128x8xf32>) -> tensor<32x8xf32>
      return %3 : tensor<32x8xf32>
    }

After `gflow-fuse,gflow-materialize,gflow-write-in-place`:

    func.func @f(…) -> … {
      %0:2 = "gflow.fused"(%x) … {kind = "pointwise", …} : …
      %1 = "gflow.concatenate"(%0#0, %0#1) {dim = 1 : i64, gflow.in_place, …} : …
      %2 = "gflow.matmul"(%1, %w) : …
      return %2 : …
    }

The buffer of `%1` is live from the producer of its first operand on. `%0#0` and `%0#1` are its left and right half,
with a row stride of 128 elements. There may be reshapes and transposes between an operand and the concatenation. All
operands must have no other reader, and must be results of kernels that can write with strides: pointwise and row
kernels, gradients of attention, and other concatenations and copies. Products and column kernels also write in place,
if the slice is row-major and its first byte is aligned as buffers are. This holds for gradients in the bucket of a
collective. A value whose rows would become non-contiguous keeps its own buffer.
"""

from __future__ import annotations

from gflow.compiler.ir.ssa import Body, Op, fused_kind, read_body
from gflow.compiler.ir.views import IN_PLACE, Layout, layouts, part_layouts, source_layout
from gflow.compiler.memory.liveness import ALIGN
from gflow.dialects.marks import LAUNCH
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, row_major_strides

from ..base import NoOptions, Pass

_WRITERS = ("pointwise", "row")


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Give the operands of concatenations and copies of the function a place in the result."""
    body = read_body(function)
    at = layouts(function, body)
    # values that the function returns have places of their own
    fixed = {at[v].base for v in body.returned} | set(body.returned)
    parts: dict[int, Layout] = {}
    for o in reversed(body.ops):
        if not _collects(o) or o.results[0] in fixed:
            continue
        found = _sources(body, o, parts, fixed)
        if found is not None:
            parts |= found
            o.op.attributes[IN_PLACE] = ir.UnitAttr.get()


def _sources(
    body: Body, o: Op, parts: dict[int, Layout], fixed: set[int]
) -> dict[int, Layout] | None:
    """The places in the result of the values that `o` collects; None if one of them cannot be there."""
    found: dict[int, Layout] = {}
    for v, part in zip(o.operands, part_layouts(body, o, parts)):
        source = source_layout(body, v, part)
        if source is None or source[0] in found or not _read_once(body, v, source[0]):
            return None
        value, layout = source
        p = body.producer[value]
        if p < 0 or value in fixed:
            return None
        if not _writes_with_strides(body.ops[p], value) and not (
            _writes_anywhere(body.ops[p]) and _is_dense(layout, body.types[value])
        ):
            return None
        wide = [s for n, s in zip(body.types[value].shape, layout.strides) if n != 1]
        if wide[-1:] > [1] or body.types[value].numel == 0:
            return None
        found[value] = layout
    return found


def _collects(o: Op) -> bool:
    """Whether an op only gathers values: a concatenation, or a kernel that copies its operand."""
    if o.name == "concatenate":
        return True
    if o.name != "fused" or len(o.operands) != 1 or len(o.results) != 1:
        return False
    block = o.op.regions[0].blocks[0]
    inner = list(block.operations)
    return len(inner) == 1 and inner[0].operation.operands[0] == block.arguments[0]


def _read_once(body: Body, value: int, source: int) -> bool:
    """Whether nothing else reads `value`, nor what it is a view of, down to `source`."""
    while len(body.users[value]) == 1:
        if value == source:
            return True
        (value,) = body.ops[body.producer[value]].operands
    return False


def _writes_with_strides(o: Op, value: int) -> bool:
    if o.name in ("concatenate", "attention_grad"):
        return (
            o.name != "attention_grad" or o.results.index(value) < 3
        )  # the gradient of the bias is dense
    return fused_kind(o.op) in _WRITERS and LAUNCH not in o.op.attributes


def _writes_anywhere(o: Op) -> bool:
    """Whether an op writes row-major to any address at which a buffer may begin."""
    return fused_kind(o.op) in ("contraction", "column") or o.name == "matmul"


def _is_dense(layout: Layout, ty: TensorType) -> bool:
    """Whether a layout is row-major and begins at a multiple of a buffer's alignment."""
    dense = row_major_strides(ty.shape)
    pairs = zip(ty.shape, layout.strides, dense)
    begins = layout.offset * ty.itemsize % ALIGN == 0
    return begins and all(a == b for size, a, b in pairs if size != 1)


PASS = Pass("gflow-write-in-place", run, NoOptions, __doc__ or "")

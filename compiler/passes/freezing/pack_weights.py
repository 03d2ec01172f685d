"""Pack frozen weights of matrix products and convolutions in the order in which kernels read them.

Before:

    func.func @f(%x: tensor<40x64xf32>, %w: tensor<96x64xf32> {gflow.frozen = true}) -> tensor<40x96xf32> {
      %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>}
         : (tensor<96x64xf32>) -> tensor<64x96xf32>
      %1 = "gflow.matmul"(%x, %0) : (tensor<40x64xf32>, tensor<64x96xf32>) -> tensor<40x96xf32>
      return %1 : tensor<40x96xf32>
    }

After `gflow-pack-weights{isa=x86-64-v4},gflow-freeze`, of the function that runs at each call:

    func.func @f(%x: tensor<40x64xf32>, %p: tensor<2x3072xf32> {…}) -> … {
      %0 = "gflow.packed_product"(%x, %p) {columns = 96 : i64, …} : …
      return %0 : tensor<40x96xf32>
    }
    …

A packed weight consists of strips of outputs; within a strip, the outputs of each position of K are contiguous. The
last strip is padded with zeros. The width of a strip depends on the CPU and on the sizes of the product. The pass
supports float32 products of two matrices, and channels-last convolutions that are depthwise or have one group, if the
weight depends only on frozen arguments. Products with few rows keep their weight, which their kernels read in place,
and so do convolutions that run faster by Winograd's algorithm, which transforms the weight at each call.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.frozen import CALL, ONCE, UNQUANTIZED, follow
from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.compiler.kernel.blocks import Problem
from gflow.compiler.kernel.convolution import Geometry, geometry
from gflow.compiler.kernel.selection.cpu.blocking import FEW_ROWS, blocks_of, share_of_peak
from gflow.compiler.kernel.selection.cpu.convolutions.winograd import winograd_of
from gflow.compiler.kernel.selection.cpu.strips import strip_for
from gflow.compiler.targets.processors import PROCESSORS, Processor, host_level
from gflow.dialects import builder
from gflow.dialects.extents import at_most, varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.packed import packed_k
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, type_of

from ..base import Pass

#: the most columns of padding for each column of the weight
_FILLED = 1.0
#: the share of the peak of multiply-adds from which on products by AMX are faster than those with a packed weight
_MUCH_FASTER = 1.3


@record
class PackOptions:
    """Options of gflow-pack-weights."""

    isa: str = field(
        default="",
        metadata={
            "doc": f"the instruction-set level of the processor: {', '.join(PROCESSORS)}; empty: that of this machine"
        },
    )
    winograd: bool = field(
        default=True,
        metadata={
            "doc": "whether weights of 3×3 convolutions that run faster by Winograd's algorithm stay as they are"
        },
    )


def run(function: func.FuncOp, options: PackOptions) -> None:
    """Pack the frozen weights of a function, in place.

    Raises:
        PassError: the instruction set (option `isa`) is unknown.
    """
    processor = PROCESSORS.get(options.isa or host_level())
    if processor is None:
        raise PassError(f"isa must be one of {', '.join(PROCESSORS)}, found {options.isa!r}")
    body = read_body(function)
    kinds = follow(function, body)
    for o in body.ops:
        if o.name not in ("matmul", "convolution"):
            continue
        x, weight = o.operands
        if kinds[weight] != ONCE or kinds[x] != CALL:
            continue
        attrs = _matrices(body, o) if o.name == "matmul" else _windows(body, o)
        if attrs is None:
            continue
        if options.winograd and o.name == "convolution" and _transforms(processor, body, o):
            continue
        width = _strip(processor, body, o, attrs)
        if not width:
            continue
        with ir.InsertionPoint(o.op), o.op.location:
            weight = o.op.operands[1]
            rows = _rows_of(weight) if o.name == "convolution" else by_outputs(weight)
            packed = _packed(rows, width)
            new = builder.build("packed_product", [o.op.operands[0], packed], attrs)
        if UNQUANTIZED in o.op.attributes:
            new.owner.attributes[UNQUANTIZED] = o.op.attributes[UNQUANTIZED]
        o.op.results[0].replace_all_uses_with(new)
        o.op.erase()


_PLAIN: dict[str, tuple[int, ...]] = dict.fromkeys(("kernel", "stride", "padding", "dilation"), ())


def _matrices(body: Body, o: Op) -> dict[str, object] | None:
    """The attributes of a packed matrix product; None for other products, and if the weight is better read in place."""
    x, w = (body.types[v] for v in o.operands)
    if w.dtype != "f32" or w.rank != 2 or not w.numel:
        return None
    return None if at_most(x.shape[0]) <= FEW_ROWS else {"columns": w.shape[1], **_PLAIN}


def _windows(body: Body, o: Op) -> dict[str, object] | None:
    """The attributes of a packed convolution; None if the packed kernel does not support it."""
    g, types = _geometry(body, o), [body.types[v] for v in (*o.operands, *o.results)]
    if not g.last or (g.groups > 1 and not g.depthwise) or g.rank > 3 or types[2].dtype != "f32":
        return None
    if any(ty.numel == 0 for ty in types):
        return None
    moves = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    alone: dict[str, object] = {"depthwise": True} if g.depthwise else {}
    return {"columns": g.o, "kernel": g.kernel, **moves, **alone}


def _geometry(body: Body, o: Op) -> Geometry:
    return geometry(o.name, o.op, [body.types[v] for v in (*o.operands, *o.results)])


def _transforms(p: Processor, body: Body, o: Op) -> bool:
    """Whether a convolution runs faster by Winograd's algorithm."""
    return winograd_of(p, _geometry(body, o), 1) is not None


def _strip(p: Processor, body: Body, o: Op, attrs: dict[str, object]) -> int:
    """The number of outputs of a strip; 0: not packed, as there would be too much padding, the weight is dynamic, or
    the product is faster by AMX, whose panels are packed at each call."""
    (x, _), result = (body.types[v] for v in o.operands), body.types[o.results[0]]
    columns, k = result.shape[-1], packed_k(x, attrs)
    if varies(columns) or varies(k):
        return 0
    product = Problem(at_most(result.numel // columns), columns, k)
    if o.name == "matmul" and p.amx is not None and product.rows > FEW_ROWS:
        found = blocks_of(p, product, 1)
        if share_of_peak(p, product, found, 1) > _MUCH_FASTER:
            return 0
    width = strip_for(p, product, bool(attrs.get("depthwise")))
    filled = -columns % width
    return width if filled <= _FILLED * columns else 0


def by_outputs(weight: ir.Value) -> ir.Value:
    """The right operand [K, N] of a product as [N, K]."""
    owner = None if isinstance(weight.owner, ir.Block) else weight.owner.operation
    if owner is not None and owner.name == "gflow.transpose":
        return owner.operands[0]
    return _op("transpose", weight, permutation=(1, 0))


def _rows_of(kernel: ir.Value) -> ir.Value:
    """The weight [outputs, taps…, channels] of a convolution as [outputs, K]."""
    ty = type_of(kernel)
    return _op("reshape", kernel, shape=(ty.shape[0], ty.numel // ty.shape[0]))


def _packed(weight: ir.Value, width: int) -> ir.Value:
    """Build the packed weight. It is a copy, so it is computed once, in the prologue."""
    n, k = type_of(weight).shape
    strips = -(-n // width)
    if strips * width > n:
        zero = builder.splat(0.0, TensorType((), "f32"))
        weight = _op("pad", weight, zero, low=(0, 0), high=(strips * width - n, 0))
    parts = _op("reshape", weight, shape=(strips, width, k))
    turned = _op("transpose", parts, permutation=(0, 2, 1))
    return _op("reshape", turned, shape=(strips, k * width))


def _op(name: str, *operands: ir.Value, **attrs: object) -> ir.Value:
    return builder.build(name, list(operands), attrs)


PASS = Pass("gflow-pack-weights", run, PackOptions, __doc__ or "")

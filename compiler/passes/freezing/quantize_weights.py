"""Quantize frozen weights of matrix products to 8 or 4 bits.

Before:

    func.func @f(%x: tensor<2x64xf32>, %w: tensor<96x64xf32> {gflow.frozen = true, gflow.name = "w"})
        -> tensor<2x96xf32> {
      %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>}
         : (tensor<96x64xf32>) -> tensor<64x96xf32>
      %1 = "gflow.matmul"(%x, %0) : (tensor<2x64xf32>, tensor<64x96xf32>) -> tensor<2x96xf32>
      return %1 : tensor<2x96xf32>
    }

After `gflow-quantize-weights,gflow-freeze`, of the function that runs at each call:

    func.func @f(%x: tensor<2x64xf32>, %s: tensor<128x1xf32> {…}, %e: tensor<f32> {…}, %q: tensor<2x4096xi8> {…}) -> … {
      %0 = "gflow.reshape"(%s) {shape = array<i64: 2, 64>} : …
      %1 = "gflow.quantized_matmul"(%x, %q, %0, %e) {bits = 8 : i64, columns = 96 : i64, source = "w"} : …
      return %1 : tensor<2x96xf32>
    }
    …

A quantized weight consists of strips of 64 outputs; within a strip, the outputs of each position of K are contiguous.
The last strip is padded with zeros.

With 8 bits, each row of the weight (each output) has a scale: its largest magnitude divided by 127. With 4 bits, each
group of 32 elements of a row has a scale: the element of largest magnitude divided by -8. Elements are rounded to
nearest, halves to even. The pass supports float32 products of two matrices whose right operand depends only on frozen
arguments, has at least `least` elements, and has a K that is a multiple of 32. On other products and convolutions with
frozen weights, `gflow.unquantized` states the reason.
"""

from __future__ import annotations

from dataclasses import field
from math import prod

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.frozen import CALL, ONCE, UNQUANTIZED, follow
from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.quantized import BITS, GROUP, STRIP, WORD, weight_types
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, type_of

from ..base import Pass
from .pack_weights import by_outputs

_READERS = ("matmul", "convolution", "take")


@record
class QuantizeOptions:
    """Options of gflow-quantize-weights."""

    bits: int = field(default=8, metadata={"doc": "the bits of an element: 8 or 4"})
    least: int = field(default=4096, metadata={"doc": "the fewest elements of a weight"})


def run(function: func.FuncOp, options: QuantizeOptions) -> None:
    """Quantize the frozen weights of a function, in place.

    Raises:
        PassError: the bits are neither 8 nor 4.
    """
    if options.bits not in BITS:
        raise PassError(f"weights have 8 or 4 bits, found {options.bits}", function)
    body = read_body(function)
    kinds = follow(function, body)
    made: dict[int, list[ir.Value]] = {}
    for o in body.ops:
        weight = _weight(o)
        if weight is None or kinds[weight] != ONCE or kinds[o.results[0]] != CALL:
            continue
        why = _problem(body, o, kinds, options.least)
        if why:
            o.op.attributes[UNQUANTIZED] = ir.StringAttr.get(
                f"{_names(function, body, weight)}: {why}"
            )
            continue
        if weight not in made:
            with ir.InsertionPoint(o.op), o.op.location:
                made[weight] = _quantized(by_outputs(body.values[weight]), options.bits)
        attrs = {
            "bits": options.bits,
            "columns": body.types[weight].shape[1],
            "source": _names(function, body, weight),
        }
        with ir.InsertionPoint(o.op), o.op.location:
            operands = [o.op.operands[0], *made[weight]]
            new = builder.build("quantized_matmul", operands, attrs)
        o.op.results[0].replace_all_uses_with(new)
        o.op.erase()


def _weight(o: Op) -> int | None:
    """The number of the operand that may be a weight; None for other ops."""
    if o.name not in _READERS:
        return None
    return o.operands[0 if o.name == "take" else 1]


def _problem(body: Body, o: Op, kinds: list[int], least: int) -> str:
    """The reason why a weight isn't quantized; "" if it is."""
    ty = body.types[_weight(o) or 0]
    if o.name == "convolution":
        return "a convolution"
    if o.name == "take":
        return "looked up, not multiplied"
    if ty.dtype != "f32":
        return f"of {ty.dtype}"
    if ty.rank != 2 or kinds[o.operands[0]] != CALL:
        return "a product of more than two dimensions"
    if ty.shape[0] % GROUP:
        return f"its K of {ty.shape[0]} is no multiple of {GROUP}"
    return "small" if ty.numel < least else ""


def _names(function: func.FuncOp, body: Body, value: int) -> str:
    """The names of the arguments on which a value depends."""
    given = function.operation.attributes
    listed = list(ir.ArrayAttr(given["arg_attrs"])) if "arg_attrs" in given else []
    found: dict[str, None] = {}
    waiting, seen = [value], {value}
    while waiting:
        v = waiting.pop()
        if body.producer[v] >= 0:
            new = [x for x in body.ops[body.producer[v]].operands if x not in seen]
            seen.update(new)
            waiting += new
        elif v < len(listed):
            attrs = ir.DictAttr(listed[v])
            found[
                ir.StringAttr(attrs["gflow.name"]).value if "gflow.name" in attrs else f"%{v}"
            ] = None
    return ", ".join(sorted(found))


def _quantized(w: ir.Value, bits: int) -> list[ir.Value]:
    """Build the quantized elements, the scales and the relative error of a weight [N, K]."""
    n, k = type_of(w).shape
    group = k if bits == 8 else GROUP
    rows = weight_types(n, k, bits)[0].shape[0] * STRIP
    if rows > n:
        zero = builder.splat(0.0, TensorType((), "f32"))
        w = _op("pad", w, zero, low=(0, 0), high=(rows - n, 0))
    parts = TensorType((rows, k // group, group), "f32")
    x = _op("reshape", w, shape=parts.shape)  # [rows, groups, group]
    if bits == 8:
        top = _op("reduce", _op("abs", x), kind="max", dims=(2,))
        scale = _div(top, 127.0)
    else:  # the element that is farthest from 0 becomes -8
        high, low = (_op("reduce", x, kind=kind, dims=(2,)) for kind in ("max", "min"))
        above = _op("compare", high, _op("neg", low), predicate="ge")
        scale = _div(_op("select", above, high, low), -8.0)
    zero = _splat(0.0, scale)
    safe = _op("select", _op("compare", scale, zero, predicate="eq"), _splat(1.0, scale), scale)
    wide = _op("broadcast", safe, shape=parts.shape, dims=(0, 1))
    steps = _op("round", _op("div", x, wide))
    low, high = (-127.0, 127.0) if bits == 8 else (-8.0, 7.0)
    steps = _op("minimum", _op("maximum", steps, _splat(low, steps)), _splat(high, steps))
    error = _error(x, _op("mul", steps, wide))
    if bits == 8:
        signed = builder.convert(steps, "i8")
        strips = _in_strips(signed, (rows // STRIP, STRIP, k), (0, 2, 1))
        return [strips, _op("reshape", safe, shape=(rows // STRIP, STRIP)), error]
    shifted = builder.convert(_op("add", steps, _splat(8.0, steps)), "ui8")
    pairs = _op("reshape", shifted, shape=(rows, k // 2, 2))
    ends = [
        _op("slice", pairs, starts=(0, 0, h), limits=(rows, k // 2, h + 1), strides=(1, 1, 1))
        for h in (0, 1)
    ]
    upper = _op("mul", ends[1], _splat(16, ends[1]))
    words = (rows // STRIP, STRIP, k // WORD, WORD // 2)
    strips = _in_strips(_op("or", ends[0], upper), words, (0, 2, 1, 3))
    return [strips, _in_strips(safe, (rows // STRIP, STRIP, k // GROUP), (0, 2, 1)), error]


def _in_strips(x: ir.Value, shape: tuple[int, ...], order: tuple[int, ...]) -> ir.Value:
    """Build the strips: `x` reshaped to `shape` and transposed to `order`. It is a copy, so it is computed once."""
    turned = _op("transpose", _op("reshape", x, shape=shape), permutation=order)
    return _op("reshape", turned, shape=(shape[0], prod(shape[1:])))


def _error(x: ir.Value, y: ir.Value) -> ir.Value:
    """Build ‖x - y‖ / ‖x‖; 0 if x is zero."""
    off = _op("sub", x, y)
    dims = tuple(range(type_of(x).rank))
    far, size = (_op("reduce", _op("mul", v, v), kind="sum", dims=dims) for v in (off, x))
    none = _op("compare", size, _splat(0.0, size), predicate="eq")
    return _op("sqrt", _op("div", far, _op("select", none, _splat(1.0, size), size)))


def _op(name: str, *operands: ir.Value, **attrs: object) -> ir.Value:
    return builder.build(name, list(operands), attrs)


def _div(x: ir.Value, by: float) -> ir.Value:
    return _op("div", x, _splat(by, x))


def _splat(value: float, like: ir.Value) -> ir.Value:
    return builder.splat(value, type_of(like))


PASS = Pass("gflow-quantize-weights", run, QuantizeOptions, __doc__ or "")

"""Give attention masks without the dimensions along which they repeat.

Before:

    %b = "gflow.broadcast"(%p) {dims = array<i64: 0, 3>, shape = array<i64: 2, 1, 256, 256>}
       : (tensor<2x256xi1>) -> tensor<2x1x256x256xi1>
    %0 = "gflow.select"(%b, %zero, %low)
       : (tensor<2x1x256x256xi1>, tensor<2x1x256x256xbf16>, tensor<2x1x256x256xbf16>) -> tensor<2x1x256x256xbf16>
    %1:2 = "gflow.attention"(%q, %k, %v, %0) {…}

After `gflow-narrow-masks,gflow-simplify`:

    %0 = "gflow.select"(%p, %zero, %low)
       : (tensor<2x256xi1>, tensor<2x256xbf16>, tensor<2x256xbf16>) -> tensor<2x256xbf16>
    %1 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<2x256xbf16>) -> tensor<2x256xf32>
    %2 = "gflow.reshape"(%1) {shape = array<i64: 2, 1, 1, 256>} : (tensor<2x256xf32>) -> tensor<2x1x1x256xf32>
    %3:2 = "gflow.attention"(%q, %k, %v, %2) {…}

A padding mask is one number a key. Programs (and PyTorch, where a mask is boolean) expand it to all positions before
they compute with it. Kernels then read as many numbers of it as there are scores, instead of a row for each block.

- Broadcasts, reshapes by dimensions of size 1, transposes, and elementwise ops are repeated on the narrow values. The
  numbers stay the same.
- Halves that do not differ between positions of q become float32: a copy to shared memory that runs beside the loop
  moves four bytes at least.
- The gradient of a bias has the bias's shape, so a bias with a gradient stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.dialects import builder
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.types import HALVES, TensorType

from ..base import NoOptions, Pass
from .recognize_windows import NEEDED
from .values import attributes

#: the dimensions along which a value's elements may differ
Varying = frozenset[int]


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Replace masks of attention by those without the dimensions along which they repeat."""
    body = read_body(function)
    masks = _Masks(body)
    for o in body.ops:
        needed = NEEDED.get(o.name)
        if needed is None or attributes(o).get("bias_grad"):
            continue
        at = extras([body.types[v] for v in o.operands], needed).bias
        if at is None:
            continue
        bias = o.operands[at]
        ty = body.types[bias]
        varying = masks.varying(bias)
        row = ty.dtype in HALVES and 2 not in varying
        if row or len(varying) < sum(n != 1 for n in ty.shape):
            with ir.InsertionPoint(o.op), o.op.location:
                found = masks.narrow(bias)
                o.op.operands[at] = builder.convert(found, "f32") if row else found


@dataclass
class _Masks:
    """The values that masks are computed from. known: by value, the dimensions along which it varies. built: the
    narrow values, which later ops may use, too."""

    body: Body
    known: dict[int, Varying] = field(default_factory=dict)
    built: dict[int, ir.Value] = field(default_factory=dict)

    def varying(self, value: int) -> Varying:
        """The dimensions along which a value's elements may differ."""
        if value not in self.known:
            self.known[value] = self._varying(value)
        return self.known[value]

    def _varying(self, value: int) -> Varying:
        shape = self.body.types[value].shape
        whole = frozenset(d for d, n in enumerate(shape) if n != 1)
        o = self._maker(value)
        if o is None:
            return whole
        return frozenset().union(
            *(
                frozenset(to for d, to in enumerate(self._places(o, v)) if d in self.varying(v))
                for v in o.operands
            )
        )

    def _maker(self, value: int) -> Op | None:
        """The op that makes a value, if it can be repeated on narrow operands."""
        p = self.body.producer[value]
        if p < 0:
            return None
        o = self.body.ops[p]
        if o.name == "constant":
            return o if is_splat(o.op.attributes["value"]) else None
        if o.name == "reshape":
            before, after = (self.body.types[v].shape for v in (o.operands[0], value))
            same = [n for n in before if n != 1] == [n for n in after if n != 1]
            return o if same else None
        known = o.name in ("broadcast", "transpose") or OPS[o.name].category == "elementwise"
        return o if known and len(o.results) == 1 else None

    def _places(self, o: Op, operand: int) -> list[int]:
        """By dimension of an operand, that of the result; of a reshape -1 for a size of 1."""
        rank = self.body.types[operand].rank
        if o.name == "broadcast":
            return [int(d) for d in attributes(o)["dims"]]
        if o.name == "transpose":
            order = [int(d) for d in attributes(o)["permutation"]]
            return [order.index(d) for d in range(rank)]
        if o.name == "reshape":
            shape = self.body.types[o.results[0]].shape
            large = iter([d for d, n in enumerate(shape) if n != 1])
            return [next(large) if n != 1 else -1 for n in self.body.types[operand].shape]
        return list(range(rank))

    def narrow(self, value: int) -> ir.Value:
        """A value with a size of 1 in each dimension along which it does not vary."""
        if value not in self.built:
            self.built[value] = self._narrow(value)
        return self.built[value]

    def _narrow(self, value: int) -> ir.Value:
        ty, varying = self.body.types[value], self.varying(value)
        shape = tuple(n if d in varying else 1 for d, n in enumerate(ty.shape))
        o = self._maker(value)
        if o is None or shape == ty.shape:
            return self.body.values[value]
        if o.name == "constant":
            element = ir.DenseElementsAttr(o.op.attributes["value"]).get_splat_value()
            same = ir.DenseElementsAttr.get_splat(TensorType(shape, ty.dtype).mlir(), element)
            return builder.build("constant", [], {"value": same})
        operands = [self.narrow(v) for v in o.operands]
        if o.name == "reshape":
            return builder.reshape(operands[0], shape)
        if o.name == "transpose":
            return builder.transpose(operands[0], attributes(o)["permutation"])
        if o.name == "broadcast":
            return builder.broadcast(operands[0], shape, self._places(o, o.operands[0]))
        every = range(len(shape))
        whole = [
            x if builder.type_of(x).shape == shape else builder.broadcast(x, shape, every)
            for x in operands
        ]
        return builder.build(o.name, whole, attributes(o))


PASS = Pass("gflow-narrow-masks", run, doc=__doc__)

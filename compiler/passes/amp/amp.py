"""Mixed precision: run contractions in half precision, and compute all other ops in float32.

Matrix products, convolutions and attention have operands and results of type `dtype`, and accumulate in float32. A
value that a contraction reads is rounded once, where it is produced, and is stored in half precision if no op needs
full precision (`compiler/passes/amp/decide.py` has the rules). Exact ops (shapes, ReLU, pooling, masks) run in half
precision. Arguments and results keep their types. Parameters are the float32 master weights: each is rounded once for
forward and backward, and updates are computed in float32. A function is unchanged if no contraction gets faster.

Before:

    %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %1 = "gflow.matmul"(%x, %0) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    %2 = "gflow.exp"(%1) : (tensor<2x4xf32>) -> tensor<2x4xf32>

After `gflow-amp{dtype=bf16}`:

    %0 = "gflow.convert"(%x) {dtype = "bf16"} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
    %1 = "gflow.convert"(%w) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %2 = "gflow.transpose"(%1) {permutation = array<i64: 1, 0>} : (tensor<4x8xbf16>) -> tensor<8x4xbf16>
    %3 = "gflow.matmul"(%0, %2) : (tensor<2x8xbf16>, tensor<8x4xbf16>) -> tensor<2x4xbf16>
    %4 = "gflow.convert"(%3) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
    %5 = "gflow.exp"(%4) : (tensor<2x4xf32>) -> tensor<2x4xf32>

Parameter updates are recognized by their location names ("optimizer:…"). Contractions in them stay float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Body, Op, attributes_of, read_live_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import VerifyError
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import HALVES, TensorType

from ..base import Pass
from .decide import VIEWS, Decisions, decide

_MAX_CHAIN = 64


@record
class Options:
    """Options of gflow-amp. dtype: the half-precision type."""

    dtype: str = field(default="f16", metadata={"doc": "the half-precision type: f16 or bf16"})


def run(function: func.FuncOp, options: Options) -> None:
    """Compute contractions of the function in half precision (see the file's docstring).

    Raises:
        PassError: `dtype` is no half-precision type.
    """
    if options.dtype not in HALVES:
        raise PassError(f"dtype must be f16 or bf16, found {options.dtype!r}", function.operation)
    body = read_live_body(function)
    decisions = decide(function, body, options.dtype)
    if decisions is None:
        return
    _Rewrite(body, decisions, options.dtype).run()
    read_live_body(function)


class _Rewrite:
    """Walks the body once. Every float32 value has a float32 version, a half-precision version, or both, created on
    demand."""

    def __init__(self, body: Body, decisions: Decisions, dtype: str) -> None:
        self.body, self.at, self.dtype = body, decisions, dtype
        self.full: dict[int, ir.Value] = dict(enumerate(body.values))
        self.half: dict[int, ir.Value] = {}
        self.stored: set[int] = set()  # stored in half precision only
        self.old: list[ir.Operation] = []

    def run(self) -> None:
        for o in self.body.ops:
            with ir.InsertionPoint(o.op), o.op.location:
                self._visit(o)
        terminator = self.body.terminator
        with ir.InsertionPoint(terminator), terminator.location:
            for i, v in enumerate(self.body.returned):
                self._put(terminator, i, v)
        for op in reversed(self.old):
            op.erase()

    # -- versions of a value

    def as_half(self, v: int, depth: int = 0) -> ir.Value:
        found = self.half.get(v)
        if found is None:
            found = self.half[v] = self._made_half(v, depth)
        return found

    def _made_half(self, v: int, depth: int) -> ir.Value:
        producer = self.body.producer[v]
        if producer >= 0:
            o = self.body.ops[producer]
            if self._is_view(o) and depth < _MAX_CHAIN:
                return self._copy(o, [self.as_half(o.operands[0], depth + 1)], [self._narrow(v)])[0]
            if v in self.at.exact and o.name == "constant":
                value = ir.DenseElementsAttr(o.op.attributes["value"]).get_splat_value().value
                return builder.splat(value, self._narrow(v))
            if v in self.at.exact and o.name == "convert":
                return builder.convert(self.full[o.operands[0]], self.dtype)
        return builder.convert(self.as_full(v), self.dtype)

    def as_full(self, v: int, depth: int = 0) -> ir.Value:
        found = self.full.get(v)
        if found is None:
            o = self.body.ops[self.body.producer[v]]
            if o.name == "broadcast" and depth < _MAX_CHAIN:
                x = self.as_full(o.operands[0], depth + 1)
                found = self._copy(o, [x], [self.body.types[v]])[0]
            else:
                found = builder.convert(self.as_half(v), "f32")
            self.full[v] = found
        return found

    def _is_view(self, o: Op) -> bool:
        """Whether an op is a view of its operand: a version of its result is then the op applied to that version of
        the operand."""
        return o.name in VIEWS or (o.name == "slice" and self.at.root[o.results[0]] != o.results[0])

    def _narrow(self, v: int) -> TensorType:
        return TensorType(self.body.types[v].shape, self.dtype)

    def is_stored(self, v: int) -> bool:
        """Whether a value is stored in half precision."""
        return self.at.root[v] in self.stored

    # -- ops

    def _visit(self, o: Op) -> None:
        kind = self.at.kinds[o.index].kind
        data = [o.operands[i] for i in self.at.operands[o.index]]
        match kind:
            case "narrow":
                self.full[o.results[0]] = self.as_half(data[0])
                self.old.append(o.op)
            case "widen":
                self._in_place(o)
                self.half[o.results[0]] = self.full[o.operands[0]]
                self.stored.add(o.results[0])
            case "allow":
                self._in_half(o)
            case "barrier":
                self._barrier(o)
            case "clear" if self._is_view(o) and self.is_stored(o.results[0]):
                self.old.append(o.op)
                del self.full[o.results[0]]
            case "clear" if self._is_view(o):
                self._in_place(o)
            case "clear" if self._clear_in_half(o, data):
                self._in_half(o)
            case "promote" if o.results[0] in self.at.rounded and self._all_halves(data):
                self._in_half(o)
            case _:
                self._in_place(o)

    def _clear_in_half(self, o: Op, data: Sequence[int]) -> bool:
        return any(r in self.at.sunk for r in o.results) or self._all_halves(data)

    def _all_halves(self, data: Sequence[int]) -> bool:
        """Whether an op reads only half-precision values, and constants that half precision represents exactly."""
        halves = [self.is_stored(v) for v in data]
        return any(halves) and all(h or v in self.at.exact for h, v in zip(halves, data))

    def _in_place(self, o: Op) -> None:
        """Keep the op in float32."""
        for i, v in enumerate(o.operands):
            self._put(o.op, i, v)
        for r in o.results:
            if r in self.at.rounded:
                with ir.InsertionPoint.after(o.op):
                    self.half[r] = builder.convert(self.full[r], self.dtype)
                self.stored.add(r)
                del self.full[r]

    def _put(self, op: ir.Operation, i: int, v: int) -> None:
        value = self.as_full(v)
        if value is not self.body.values[v]:
            op.operands[i] = value

    def _in_half(self, o: Op) -> None:
        """Convert the op to half precision: its data operands and results change their type."""
        kind = self.at.kinds[o.index]
        halves = set(self.at.operands[o.index])
        operands = [
            self.as_half(v) if i in halves else self.as_full(v) for i, v in enumerate(o.operands)
        ]
        changed = {
            i
            for i, r in enumerate(o.results)
            if self.body.types[r].dtype == "f32" and i not in kind.full_results
        }
        self._replace(o, operands, changed)

    def _barrier(self, o: Op) -> None:
        halves = {
            i
            for i, (v, r) in enumerate(zip(o.operands, o.results))
            if self.body.types[v].dtype == "f32" and (r in self.at.sunk or self.is_stored(v))
        }
        operands = [
            self.as_half(v) if i in halves else self.as_full(v) for i, v in enumerate(o.operands)
        ]
        self._replace(o, operands, halves)

    def _replace(self, o: Op, operands: Sequence[ir.Value], changed: set[int]) -> None:
        """Rebuild the op on other operands. The results in `changed` are in half precision."""
        types = [
            self._narrow(r) if i in changed else self.body.types[r] for i, r in enumerate(o.results)
        ]
        try:
            results = self._copy(o, operands, types)
        except VerifyError:  # more segments of types than the op can have
            self._in_place(o)
            return
        self.old.append(o.op)
        for i, (r, new) in enumerate(zip(o.results, results)):
            if i in changed:
                self.half[r] = new
                self.stored.add(r)
                del self.full[r]
            else:
                self.full[r] = new

    def _copy(
        self, o: Op, operands: Sequence[ir.Value], types: Sequence[TensorType]
    ) -> list[ir.Value]:
        attrs = {k: v for k, v in attributes_of(o.op).items() if k in OPS[o.name].attrs}
        extra = {k: v for k, v in attributes_of(o.op).items() if k.startswith("gflow.")}
        op = builder.build_op(o.name, operands, attrs, result_types=list(types))
        for name, attr in extra.items():
            op.attributes[name] = attr
        return list(op.results)


PASS = Pass("gflow-amp", run, Options, __doc__ or "")

"""Which ops run in half precision, and which float32 values are rounded where they are produced.

Contractions read and write half-precision values. All other ops compute in float32. The decision is which values are
*stored* in half precision. A value that a contraction reads is needed in half precision in any case. If no other
reader needs float32, it is rounded where it is produced, and all readers read the rounded value. Ops that are exact in
every type ("clear") move the rounding up to their operand: the value before a ReLU, for example, is then rounded, and
both forward and backward read it.

A reader does not need float32 for *plain* values: those computed from half-precision values, parameters, constants and
per-channel numbers, for example the result of a batch norm. `torch.autocast` stores them in half precision, too. A
plain value is also rounded if a sum over the batch and other ops read it, since it is stored in any case (a batch norm
that reads the sum of gradients of two branches). One that only such sums read, also through elementwise ops, is not
stored (the deviations whose sum and sum of squares are the statistics of a batch norm). A residual stream that starts
at an embedding is not plain: it stays in float32, and only contractions read it in half precision.

A bias that is added to a contraction's result counts as part of the contraction if several ops read the sum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.amp import AtenAmp, amp_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.structure import BARRIER
from gflow.dialects.types import TensorType

from ..simplify.folding import round_to

#: shape ops whose operand can be converted instead of their result
VIEWS = frozenset({"reshape", "transpose", "broadcast"})

_NONE = AtenAmp("none")
_NARROW = AtenAmp("narrow")
_WIDEN = AtenAmp("widen")
_MASK = AtenAmp("mask")
_CONSTANT = AtenAmp("constant")
_BARRIER = AtenAmp("barrier")


@dataclass
class Decisions:
    """The decisions for a function.

    By op number:

        kinds     the class of the op by `amp_of`; converts and constants have kinds of their own
        operands  the numbers of the float32 operands that take part

    By value:

        root      the value that it is a view of
        native    values computed by contractions, or by exact ops on such values
        sunk      results of other clear ops that run in half precision, whose operand is rounded for them
        rounded   values that are stored in half precision only
        exact     constants that half precision represents exactly
    """

    kinds: list[AtenAmp]
    operands: list[list[int]]
    root: list[int]
    native: list[bool]
    sunk: set[int]
    rounded: set[int]
    exact: set[int]


def decide(function: func.FuncOp, body: Body, dtype: str) -> Decisions | None:
    """The decisions for a function; None if no contraction profits."""
    kinds = [_kind(body, o, dtype) for o in body.ops]
    if not any(k.kind == "allow" for k in kinds):
        return None
    operands = [_taking_part(body, o, k) for o, k in zip(body.ops, kinds)]
    forward = _Forward(function, body, kinds, operands, dtype)
    sunk, rounded = _backward(body, forward)
    return Decisions(kinds, operands, forward.root, forward.native, sunk, rounded, forward.exact)


def _kind(body: Body, o: Op, dtype: str) -> AtenAmp:
    types = body.types
    if not any(types[v].dtype == "f32" for v in (*o.operands, *o.results)):
        return _NONE
    if o.name == "constant":
        return _CONSTANT
    if o.name == BARRIER:
        return _BARRIER
    if o.name == "convert":
        source, target = types[o.operands[0]].dtype, types[o.results[0]].dtype
        if target == dtype:
            return _NARROW
        return _WIDEN if source == dtype else _MASK if source == "i1" else AtenAmp("deny")
    found = amp_of(o.op)
    if found.kind == "allow" and (_in_optimizer(o) or types[o.operands[0]].dtype != "f32"):
        return AtenAmp("deny")
    return found


def _in_optimizer(o: Op) -> bool:
    """Whether an op belongs to a parameter update, by its location ("optimizer:…"). Updates stay in float32."""
    return '"optimizer:' in str(o.op.location)


def _taking_part(body: Body, o: Op, kind: AtenAmp) -> list[int]:
    """The numbers of the operands that are float32 data."""
    places = [i for i, v in enumerate(o.operands) if body.types[v].dtype == "f32"]
    if kind.full_args and o.name != "aten":
        return [i for i in places if i not in kind.full_args]
    if kind.full_args:
        given = json.loads(ir.StringAttr(o.op.attributes["args"]).value)[0]
        full = {given[i].get("t") for i in kind.full_args if isinstance(given[i], dict)}
        return [i for i in places if i not in full]
    if o.name == "aten":
        given = ir.StringAttr(o.op.attributes["args"]).value
        return [i for i in places if f'{{"s": {i}}}' not in given]
    return places


class _Forward:
    """Facts about values that follow from their operands, in program order.

    Args:
        root: the value that a value is a view of.
        native: in half precision, because a contraction computed it, or an exact op on such values.
        plain: see above.
        neutral: allows no conclusion about its users (parameters, constants, masks).
    """

    def __init__(
        self,
        function: func.FuncOp,
        body: Body,
        kinds: list[AtenAmp],
        operands: list[list[int]],
        dtype: str,
    ) -> None:
        self.body, self.kinds, self.operands, self.dtype = body, kinds, operands, dtype
        count = len(body.values)
        self.root = list(range(count))
        self.native = [False] * count
        self.plain = [False] * count
        self.neutral = [False] * count
        self.exact: set[int] = set()
        self.biased: set[int] = set()  # a contraction's result plus a parameter
        for v in _parameters(function, body):
            self.neutral[v] = True
        for o, kind in zip(body.ops, kinds):
            self._visit(o, kind)

    def _visit(self, o: Op, kind: AtenAmp) -> None:
        results = [r for r in o.results if self.body.types[r].dtype == "f32"]
        if not results:
            return
        r = results[0]
        match kind.kind:
            case "allow":
                for i, result in enumerate(o.results):
                    half = self.body.types[result].dtype == "f32" and i not in kind.full_results
                    self.native[result] = self.plain[result] = half
            case "widen":
                self.native[r] = self.plain[r] = True
            case "mask":
                self.neutral[r] = True
                self.exact.add(r)
            case "constant":
                self.neutral[r] = True
                if _exact(o, self.dtype):
                    self.exact.add(r)
            case "barrier":
                for x, result in zip(o.operands, o.results):
                    for known in (self.native, self.plain, self.neutral):
                        known[result] = known[x]
            case "clear":
                self._clear(o, r)
            case "promote":
                self.plain[r] = self._plain(o, r)
                native = [self.native[v] for v in self._data(o)]
                others = [self.neutral[v] for n, v in zip(native, self._data(o)) if not n]
                if o.name == "add" and any(native) and all(others):
                    self.biased.add(r)
            case _:
                self.neutral[r] = o.name == "random"

    def _clear(self, o: Op, r: int) -> None:
        x = o.operands[0]
        if o.name in VIEWS or (o.name == "slice" and (self.plain[x] or self._is_argument(x))):
            self.root[r] = self.root[x]
            self.native[r], self.plain[r] = self.native[x], self.plain[x]
            self.neutral[r] = self.neutral[x]
            if x in self.exact:
                self.exact.add(r)
            return
        data = [v for v in self._data(o) if v not in self.exact]
        self.native[r] = bool(data) and all(self.native[v] for v in data)
        self.plain[r] = self.native[r] or self._plain(o, r)

    def _is_argument(self, v: int) -> bool:
        return self.neutral[v] and self.body.producer[self.root[v]] < 0

    def _data(self, o: Op) -> list[int]:
        return [o.operands[i] for i in self.operands[o.index]]

    def _plain(self, o: Op, r: int) -> bool:
        """Whether the operands that have the result's size are plain, and there is one."""
        types, size = self.body.types, self.body.types[r].numel
        data = [
            v
            for v in self._data(o)
            if not self.neutral[v] and (types[self.root[v]].numel >= size or self.root[v] == v)
        ]
        return bool(data) and all(self.plain[v] for v in data)


def _backward(body: Body, known: _Forward) -> tuple[set[int], set[int]]:
    """Walk backward over the ops: which values are wanted in half precision, which clear ops pass this on, and which
    values are rounded."""
    root, types = known.root, body.types
    count = len(body.values)
    wanted, arithmetic, full = [False] * count, [False] * count, [False] * count
    summed = [False] * count  # over the batch, separately for each channel
    # read by other ops than such sums and elementwise ops that only they read
    stored = [False] * count
    uses = [0] * count
    for v in body.returned:
        full[root[v]] = stored[root[v]] = True
    sunk: set[int] = set()
    rounded: set[int] = set()

    def elementwise(o: Op) -> bool:
        return o.name in OPS and OPS[o.name].category == "elementwise"

    def as_half(v: int) -> bool:
        """Whether a value may be stored in half precision only."""
        if full[v]:
            return False
        if v in known.biased and uses[v] > 1:
            return True
        if summed[v] and stored[v] and known.plain[v]:
            return True
        return wanted[v] and (known.plain[v] or not arithmetic[v])

    for o in reversed(body.ops):
        kind = known.kinds[o.index].kind
        data = [o.operands[i] for i in known.operands[o.index]]
        view = bool(o.results) and root[o.results[0]] != o.results[0]
        within = elementwise(o) and not any(stored[r] for r in o.results)
        if not (view or within or _is_batch_sum(o, types)):
            for v in o.operands:
                stored[root[v]] = True
        for v in data:
            uses[root[v]] += root[o.results[0]] == o.results[0]
        results = [r for r in o.results if types[r].dtype == "f32" and root[r] == r]
        if kind in ("allow", "narrow"):
            for v in data:
                wanted[root[v]] = True
            continue
        if kind in ("none", "constant", "widen", "mask") or not o.results:
            continue
        if kind == "barrier":
            for x, r in zip(o.operands, o.results):
                if types[r].dtype == "f32" and not known.native[r]:
                    if as_half(r):
                        sunk.add(r)
                        wanted[root[x]] = True
                    arithmetic[root[x]] |= arithmetic[r]
                    full[root[x]] |= full[r]
            continue
        if kind == "clear":
            if not results or known.native[results[0]]:
                continue
            varying = [v for v in data if v not in known.exact]
            if as_half(results[0]) and len(varying) == 1 and o.name != "take":
                x = root[varying[0]]
                # no reader needs the operand's precision, or rounding it needs less memory
                smaller = types[x].numel <= types[results[0]].numel
                if wanted[x] or smaller or not (arithmetic[x] or full[x]):
                    wanted[x] = True
                    sunk.add(results[0])
                    continue
        if _is_batch_sum(o, types):
            summed[root[o.operands[0]]] = True
        if o.name != "reduce":
            for v in data:
                arithmetic[root[v]] = True
        rounded.update(r for r in results if as_half(r))
    return sunk, rounded


def _is_batch_sum(o: Op, types: Sequence[TensorType]) -> bool:
    """Whether an op is a reduction that includes the first dimension and keeps another one."""
    if o.name != "reduce":
        return False
    dims = list(ir.DenseI64ArrayAttr(o.op.attributes["dims"]))
    return 0 in dims and len(dims) < types[o.operands[0]].rank


def _parameters(function: func.FuncOp, body: Body) -> list[int]:
    if "arg_attrs" not in function.attributes:
        return []
    return [
        v
        for v, attrs in zip(body.arguments, function.arg_attrs)
        if "gflow.role" in attrs and ir.StringAttr(attrs["gflow.role"]).value == "parameter"
    ]


def _exact(o: Op, dtype: str) -> bool:
    """Whether a constant is a splat that half precision represents exactly."""
    elements = o.op.attributes["value"]
    if not isinstance(elements, ir.DenseElementsAttr) or not elements.is_splat:
        return False
    value = elements.get_splat_value().value
    return bool(np.isnan(value)) or round_to(value, dtype) == value

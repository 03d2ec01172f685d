"""How values over a matrix of scores depend on the scores: what `gflow-split-softmax` knows of a loss.

Scores x are [rows, columns]. A value f of their shape has one of these forms, in all columns but one of each row, the
row's target:

    x       the score plus a number of the row                     x[i, v] + a[i]
    exp     an exponential of such a sum times a number            b[i] * exp(x[i, v] + a[i])
    flat    a number of the row                                    b[i]
    other   anything else

At the target, the value may be another one (a one-hot row that is added or that selects). A value of form "exp" at any
score m of its row gives it at the others: f(x) = f(m) exp(x - m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record

Kind = Literal["x", "exp", "flat", "iota", "other"]


@record
class Form:
    """The form of a value.

    Attributes:
        kind: in columns other than the target; "iota" for the number of the column.
        aimed: whether the target's value is another one.
        zero: whether it is the constant 0 (or false) in columns other than the target.
    """

    kind: Kind
    aimed: bool = False
    zero: bool = False


_OTHER = Form("other", aimed=True)


@dataclass
class Scores:
    """The values over a matrix of scores.

    Attributes:
        body: the function.
        x: the scores, a value number.
        shape: rows and columns.
        target: the columns of the targets, a value of shape [rows]; -1: no value depends on one.
        forms: of the values over the matrix that were looked at.
        computed: the values that depend on the scores.
    """

    body: Body
    x: int
    shape: tuple[int, ...]
    target: int
    forms: dict[int, Form]
    computed: list[int]

    def form(self, value: int) -> Form:
        """The form of a value over the matrix."""
        found = self.forms.get(value)
        if found is None:
            found = self.forms[value] = self._form(value)
        return found

    def _form(self, value: int) -> Form:
        body, p = self.body, self.body.producer[value]
        if p < 0:
            return _OTHER
        o = body.ops[p]
        match o.name:
            case "constant":
                attribute = o.op.attributes["value"]
                return Form("flat", zero=_is_zero(attribute)) if is_splat(attribute) else _OTHER
            case "iota":
                return Form("iota" if read(OPS["iota"], o.op.attributes)["dim"] else "flat")
            case "broadcast":
                return Form("flat") if self.of_rows(o) else _OTHER
            case "compare":
                return self._compared(o)
        if OPS[o.name].category != "elementwise":
            return _OTHER
        given = [self.form(v) for v in o.operands]
        found = _combined(o, given)
        return Form(found.kind, found.aimed or any(g.aimed for g in given), found.zero)

    def of_rows(self, o: Op) -> bool:
        """Whether a broadcast repeats a number, or a number of each row, over the matrix."""
        (v,), dims = o.operands, read(OPS["broadcast"], o.op.attributes)["dims"]
        shape = self.body.types[v].shape
        return shape == () or (shape == self.shape[:1] and tuple(dims) == (0,))

    def _compared(self, o: Op) -> Form:
        """The form of a comparison: a one-hot row if it finds the target's column."""
        kinds = [self.form(v).kind for v in o.operands]
        predicate = read(OPS["compare"], o.op.attributes)["predicate"]
        if kinds == ["flat", "flat"]:
            return Form("flat", any(self.form(v).aimed for v in o.operands))
        if sorted(kinds) != ["flat", "iota"] or predicate != "eq":
            return _OTHER
        spread = self.body.ops[self.body.producer[o.operands[kinds.index("flat")]]]
        if spread.name != "broadcast" or self.body.types[spread.operands[0]].rank != 1:
            return _OTHER
        if self.target not in (-1, spread.operands[0]):
            return _OTHER
        self.target = spread.operands[0]
        return Form("flat", aimed=True, zero=True)


def _is_zero(elements: ir.Attribute) -> bool:
    value = elements.get_splat_value()
    if isinstance(value, ir.FloatAttr | ir.BoolAttr):
        return not value.value
    return isinstance(value, ir.IntegerAttr) and not ir.IntegerAttr(value).value


def _combined(o: Op, given: Sequence[Form]) -> Form:
    """The form of an elementwise op's result, by those of its operands; whether it is aimed is left to the caller."""
    kinds = [g.kind for g in given]
    match o.name, kinds:
        case "convert", ["x" | "exp"]:
            return given[0]
        case "exp", ["x"]:
            return Form("exp")
        case "neg", ["exp"]:
            return Form("exp")
        case "add", ["x", "flat"] | ["flat", "x"]:
            return Form("x")
        case "sub", ["x", "flat"]:
            return Form("x")
        case "mul", ["exp", "flat"] | ["flat", "exp"]:
            return Form("exp")
        case "div", ["exp", "flat"]:
            return Form("exp")
        case "add" | "sub", ["exp", "flat"] if given[1].zero:
            return Form("exp")
        case "add" | "sub", ["flat", "exp"] if given[0].zero:
            return Form("exp")
        case "and", _ if any(g.zero for g in given):
            return Form("flat", zero=True)
        case "select", ["flat", _, _] if given[0].zero:
            return given[2]
        case "select", ["flat", "exp", "flat"] if given[2].zero:
            return Form("exp")
        case "select", ["flat", "flat", "exp"] if given[1].zero:
            return Form("exp")
        case "neg" | "convert", ["flat"]:
            return given[0]
    return Form("flat") if all(k == "flat" for k in kinds) else Form("other")


def scores_of(body: Body, x: int) -> Scores | None:
    """The values that depend on scores, up to reductions of rows and to what is rounded to half precision.

    None if one of them is returned, or read by another kind of op.

    Args:
        body: the function.
        x: the scores, a matrix.
    """
    shape = body.types[x].shape
    found = Scores(body, x, shape, -1, {x: Form("x")}, [x])
    returned, seen, n = set(body.returned), {x}, 0
    while n < len(found.computed):
        v = found.computed[n]
        n += 1
        if v in returned:
            return None
        if v != x and body.types[v].dtype in ("bf16", "f16"):
            continue
        for i in body.users[v]:
            o = body.ops[i]
            if o.name == "reduce":
                if read(OPS["reduce"], o.op.attributes)["dims"] != (1,):
                    return None
            elif OPS[o.name].category != "elementwise" or body.types[o.results[0]].shape != shape:
                return None
            elif o.results[0] not in seen:
                seen.add(o.results[0])
                found.computed.append(o.results[0])
    return found

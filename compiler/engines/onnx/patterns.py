"""Recognition of functions for which ONNX has one op, such as Softmax, LayerNormalization and Gelu.

    %1 = "gflow.reduce"(%x) {dims = [2], kind = "max"} …   %2 = "gflow.broadcast"(%1) {dims = [0, 1]} …
    %3 = "gflow.sub"(%x, %2) …                             %4 = "gflow.exp"(%3) …
    %5 = "gflow.reduce"(%4) {dims = [2], kind = "sum"} …   %6 = "gflow.broadcast"(%5) {dims = [0, 1]} …
    %7 = "gflow.div"(%4, %6) …

becomes `Softmax(%x)`. Engines have fused kernels for such ops, and otherwise recognize the functions only in the form
that other exporters write.

A pattern is a name (which matches any value, the same one at each occurrence), a number, or an op with the patterns of
its operands; operands of commutative ops match in either order. `sum`, `mean` and `max` are reductions. `rows` is a
broadcast of a reduced value back over the reduced dimensions, and `along` a broadcast of a tensor of the reduced
dimensions to all rows. All of them must have the same `dims`. `last` is a broadcast of a vector along the last
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isclose, pi, prod, sqrt
from typing import Any

import numpy as np

from gflow.dialects.mlir import ir
from gflow.dialects.records import record
from gflow.dialects.types import type_of

from ..form import Call, call_of
from .rows import number_of
from .writer import Writer

_COMMUTE = ("add", "mul", "maximum")
_KINDS = {
    **dict.fromkeys(("sum", "max"), "reduce"),
    **dict.fromkeys(("rows", "along", "last"), "broadcast"),
}


@record
class _Number:
    """A pattern that matches any constant number, by name."""

    name: str


@dataclass
class _Found:
    """The state of a match: values and numbers by name, and the reduced dimensions."""

    values: dict[str, ir.Value]
    numbers: dict[str, float] = field(default_factory=dict)
    dims: tuple[int, ...] | None = None

    def copy(self) -> _Found:
        return _Found(dict(self.values), dict(self.numbers), self.dims)

    def agrees(self, dims: tuple[int, ...]) -> bool:
        """Whether the reduced dimensions are `dims`; the first call sets them."""
        self.dims = dims if self.dims is None else self.dims
        return self.dims == dims


def _match(value: ir.Value, pattern: Any, found: _Found) -> _Found | None:
    if isinstance(pattern, str):
        known = found.values.setdefault(pattern, value)
        return found if known == value else None
    if isinstance(pattern, int | float | _Number):
        return _match_number(value, pattern, found)
    name, *parts = pattern
    if name == "mean":
        return _match_mean(value, parts[0], found)
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    kind = _KINDS.get(name, name)
    op = owner.operation
    if op.name != f"gflow.{kind}" or (kind != name and not _reduces(name, call_of(op), found)):
        return None
    operands = list(op.operands)
    for order in (operands, operands[::-1]) if name in _COMMUTE else (operands,):
        state: _Found | None = found.copy()
        for operand, part in zip(order, parts, strict=True):
            state = state and _match(operand, part, state)
        if state is not None:
            return state
    return None


def _match_number(value: ir.Value, pattern: float | _Number, found: _Found) -> _Found | None:
    number = number_of(value)
    if number is None:
        return None
    wanted = (
        found.numbers.setdefault(pattern.name, number) if isinstance(pattern, _Number) else pattern
    )
    return found if isclose(number, wanted, rel_tol=1e-6) else None


def _match_mean(value: ir.Value, pattern: Any, found: _Found) -> _Found | None:
    """Match a mean: a sum divided by the number of its elements, or multiplied by its reciprocal."""
    for kind, power in (("mul", -1), ("div", 1)):
        state = _match(value, (kind, ("sum", pattern), _Number("count")), found.copy())
        if state is None:
            continue
        shape = type_of(state.values["x"]).shape  # the sum's operand has the shape of x
        assert state.dims is not None
        if isclose(
            state.numbers.pop("count") ** power, prod(shape[d] for d in state.dims), rel_tol=1e-6
        ):
            return state
    return None


def _reduces(name: str, call: Call, found: _Found) -> bool:
    dims = tuple(call.attrs["dims"])
    if name in ("sum", "max"):
        return call.attrs["kind"] == name and call.attrs["dtype"] is None and found.agrees(dims)
    if name == "along":
        return found.dims == dims
    if name == "last":
        return dims == (call.type.rank - 1,)
    return found.agrees(tuple(d for d in range(call.type.rank) if d not in dims))


# -- the functions


_SHIFTED = ("sub", "x", ("rows", ("max", "x")))
_POWER = ("exp", _SHIFTED)
_CENTRED = ("sub", "x", ("rows", ("mean", "x")))
_REST = ("mean", _CENTRED)  # the mean of the centred values, which is only rounding error
_VARIANCE = ("maximum", ("sub", ("mean", ("mul", _CENTRED, _CENTRED)), ("mul", _REST, _REST)), 0.0)
_EPS = _Number("eps")
_NORMAL = (
    "mul",
    ("sub", _CENTRED, ("rows", _REST)),
    ("rows", ("div", 1.0, ("sqrt", ("add", _VARIANCE, _EPS)))),
)
_RMS = ("mul", "x", ("rows", ("div", 1.0, ("sqrt", ("add", ("mean", ("mul", "x", "x")), _EPS)))))
_CUBIC = ("mul", ("add", "x", ("mul", ("mul", ("mul", "x", "x"), "x"), 0.044715)), sqrt(2 / pi))


def _softmax(kind: str) -> Callable[[Writer, _Found, Mapping[ir.Value, str]], str | None]:
    def write(w: Writer, found: _Found, known: Mapping[ir.Value, str]) -> str | None:
        if found.dims is None or len(found.dims) != 1:
            return None
        return w.node(kind, [known[found.values["x"]]], axis=found.dims[0])

    return write


def _gelu(approximate: str) -> Callable[[Writer, _Found, Mapping[ir.Value, str]], str | None]:
    return lambda w, found, known: w.node(
        "Gelu", [known[found.values["x"]]], approximate=approximate
    )


def _normalized(found: _Found) -> tuple[int, ...] | None:
    """The sizes of the normalized dimensions; None unless they are the last ones."""
    x, dims = type_of(found.values["x"]), found.dims
    if not dims or dims != tuple(range(x.rank - len(dims), x.rank)):
        return None
    return x.shape[dims[0] :]


def _layer_norm(w: Writer, found: _Found, known: Mapping[ir.Value, str]) -> str | None:
    sizes = _normalized(found)
    if sizes is None:
        return None
    values = found.values
    given = [known[values["x"]]]
    given.append(
        known[values["weight"]] if "weight" in values else w.constant(np.ones(sizes, np.float32))
    )
    if "bias" in values:
        given.append(known[values["bias"]])
    return w.node("LayerNormalization", given, axis=-len(sizes), epsilon=found.numbers["eps"])


def _rms_norm(w: Writer, found: _Found, known: Mapping[ir.Value, str]) -> str | None:
    """Write an RMS norm as the nodes that engines recognize, since opset 21 has no op for it."""
    if _normalized(found) is None:
        return None
    assert found.dims is not None
    x = known[found.values["x"]]
    square = w.node("Pow", [x, w.scalar(2.0, "f32")])
    mean = w.node("ReduceMean", [square, w.ints(found.dims)], keepdims=1)
    scale = w.node("Sqrt", [w.node("Add", [mean, w.scalar(found.numbers["eps"], "f32")])])
    return w.node("Div", [x, scale])


def _linear(w: Writer, found: _Found, known: Mapping[ir.Value, str]) -> str | None:
    """Write a matrix product of flattened rows as one of more dimensions."""
    values = found.values
    x, result = type_of(values["x"]), type_of(values["result"])
    if not x.shape or not result.shape or result.shape[:-1] != x.shape[:-1]:
        return None
    if type_of(values["weight"]).shape != (x.shape[-1], result.shape[-1]):
        return None
    inner = values["result"].owner.operands[0]
    chain = [inner, *(v for v in inner.owner.operands if "bias" in values)]
    if any(len(list(v.uses)) > 1 for v in chain):  # it would be computed twice otherwise
        return None
    product = w.node("MatMul", [known[values["x"]], known[values["weight"]]])
    return w.node("Add", [known[values["bias"]], product]) if "bias" in values else product


_ROWS = ("matmul", ("reshape", "x"), "weight")

#: by the last op of a function: patterns, the longest first, and the functions that write them
_PATTERNS: dict[str, list[tuple[Any, Callable[[Writer, _Found, Mapping[ir.Value, str]], str | None]]]] = {
    "reshape": [
        (("reshape", _ROWS), _linear),
        (("reshape", ("add", ("last", "bias"), _ROWS)), _linear),
    ],
    "div": [(("div", _POWER, ("rows", ("sum", _POWER))), _softmax("Softmax"))],
    "sub": [(("sub", _SHIFTED, ("rows", ("log", ("sum", _POWER)))), _softmax("LogSoftmax"))],
    "add": [(("add", ("mul", _NORMAL, ("along", "weight")), ("along", "bias")), _layer_norm)],
    "mul": [
        (("mul", _NORMAL, ("along", "weight")), _layer_norm),
        (_NORMAL, _layer_norm),
        (_RMS, _rms_norm),
        (("mul", ("mul", "x", 0.5), ("add", ("erf", ("mul", "x", sqrt(0.5))), 1.0)), _gelu("none")),
        (("mul", ("mul", "x", 0.5), ("add", ("tanh", _CUBIC), 1.0)), _gelu("tanh")),
    ],
}  # fmt: skip


def write_found(w: Writer, call: Call, known: Mapping[ir.Value, str]) -> str | None:
    """Write the function whose last op is `call` as one op of ONNX; None if no pattern matches.

    known: the names of all earlier values.
    """
    if call.name not in _PATTERNS or call.type.dtype != "f32":
        return None
    result = call.op.results[0]
    for pattern, write in _PATTERNS[call.name]:
        found = _match(result, pattern, _Found({"result": result}))
        if found is not None and (name := write(w, found, known)) is not None:
            return name
    return None

"""Decompositions of ATen calls (`gflow.aten`), by overload.

    %y = "gflow.aten"(%x) {overload = "aten.cumsum.default", args = "[[{\\22t\\22: 0}, 1], {}]"}

becomes sums with the elements 1, 2, 4, … positions before:

    %0 = "gflow.pad"(%x, %zero) …   %1 = "gflow.slice"(%0) …   %2 = "gflow.add"(%x, %1)   …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gflow.dialects.aten.calls import decode_call
from gflow.dialects.extents import at_most
from gflow.dialects.types import FLOATS, INTEGERS, TensorType

from .functions import wide
from .terms import Term, make, splat

Attrs = dict[str, Any]


class _Unknown(Exception):
    """An argument is a number that is known only at run time."""


def _scalar(operand: Any) -> float:
    raise _Unknown


def _arguments(attrs: Attrs, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    return decode_call(attrs["args"], operands, _scalar, named=lambda tag, content: content)


def applies(attrs: Attrs, operands: Sequence[TensorType]) -> bool:
    """Whether there is a decomposition for a call."""
    if attrs["overload"] not in CALLS:
        return False
    try:
        args, kwargs = _arguments(attrs, operands)
    except _Unknown:
        return False
    match args:
        case [TensorType() as x, int(dim)] if -x.rank <= dim < x.rank:
            known = x.dtype in (*FLOATS, *INTEGERS, "i1")
            return known and set(kwargs) <= {"dtype"} and kwargs.get("dtype") in (None, *_DTYPES)
    return False  # IR written by hand may call an overload with anything


def decompose(terms: list[Term], attrs: Attrs) -> list[Term]:
    """The results of a call for which `applies` holds."""
    args, kwargs = _arguments(attrs, terms)
    return [CALLS[attrs["overload"]](*args, **kwargs)]


def _running(combine: str, neutral: float) -> Callable[..., Term]:
    """The decomposition of a scan along a dimension, in log2(size) steps. combine: the op. neutral: its identity."""

    def running(x: Term, dim: int, dtype: str | None = None) -> Term:
        given = _DTYPES[dtype] if dtype else x.dtype if x.dtype in FLOATS else "i64"
        total = wide(x.to(given)) if given in FLOATS else x.to(given)
        dim %= len(x.shape)
        size, by = x.shape[dim], 1
        start = splat(neutral, (), total.dtype)
        while by < at_most(size):
            low = [by if d == dim else 0 for d in range(len(x.shape))]
            before = make("pad", total, start, low=low, high=[0] * len(low)).slice(dim, 0, size)
            total, by = make(combine, total, before), 2 * by
        return total.to(given)

    return running


#: the element types of PyTorch's dtypes as the argument `dtype` of scans
_DTYPES = {
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
}


CALLS: dict[str, Callable[..., Term]] = {
    "aten.cumsum.default": _running("add", 0),
    "aten.cumprod.default": _running("mul", 1),
}

"""The attributes of functions, their arguments and results, that passes and code generators read.

Ops check their own attributes; these stand on ops of other dialects, whose verifiers know nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .attributes import KIND_NAMES, from_mlir
from .extents import STAND_INS
from .mlir import ir
from .opdef import Attr, VerifyError

#: by where they stand: name to kind (`attributes.KIND_NAMES`)
_KINDS = {
    "function": {"gflow.tf32": "str[]"},
    "argument": {
        "gflow.role": "str", "gflow.name": "str", "gflow.min": "i64", "gflow.max": "i64",
        "gflow.stand_in": "i64",
    },
    "result": {"gflow.name": "str"},
    "op": {"gflow.launch": "i64"},
}  # fmt: skip
_SIZE = ("gflow.min", "gflow.max")


def problems(root: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    """What is wrong with such attributes in a module or function, and the op that it is told of."""
    waiting = [root]
    while waiting:
        op = waiting.pop()
        if op.name == "func.func":
            yield from _of_function(op)
        elif op.name == "builtin.module":
            inside = [
                o.operation for region in op.regions for block in region for o in block.operations
            ]
            waiting += [o for o in reversed(inside) if o.name in ("builtin.module", "func.func")]


def _of_function(root: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    for what in _of(root.attributes, "function"):
        yield what, root
    for kind, listed in (("argument", "arg_attrs"), ("result", "res_attrs")):
        if listed in root.attributes:
            for n, given in enumerate(ir.ArrayAttr(root.attributes[listed])):
                attrs = ir.DictAttr(given)
                found = [*_of(attrs, kind), *(_of_size(attrs) if kind == "argument" else ())]
                for what in found:
                    yield f"{kind} {n}: {what}", root
    for region in root.regions:
        for block in region.blocks:
            for op in block.operations:
                for what in _of(op.operation.attributes, "op"):
                    yield what, op.operation


def _of(attributes: Any, place: str) -> Iterator[str]:
    for name, kind in _KINDS[place].items():
        if name in attributes:
            try:
                from_mlir(Attr(kind), attributes[name])
            except (VerifyError, TypeError):
                yield f"'{name}' must be {KIND_NAMES[kind]}, found {attributes[name]}"


def _of_size(attrs: Any) -> Iterator[str]:
    """A size states its range and one of the primes that stand for sizes."""
    if "gflow.stand_in" not in attrs:
        return
    missing = next((name for name in _SIZE if name not in attrs), None)
    if missing is not None:
        yield f"a size ('gflow.stand_in') needs '{missing}' too"
        return
    try:
        least, most, stand_in = (
            from_mlir(Attr("i64"), attrs[name]) for name in (*_SIZE, "gflow.stand_in")
        )
    except (VerifyError, TypeError):
        return  # told already
    if stand_in not in STAND_INS:
        known = " or ".join(map(str, STAND_INS))
        yield f"'gflow.stand_in' must be {known}, found {stand_in}"
    if not 0 <= least <= most < STAND_INS[0] // 2:
        yield f"a size has a range from 0 up, found {least} to {most}"

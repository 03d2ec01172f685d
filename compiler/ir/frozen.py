"""Frozen arguments, and values that depend only on them: these are equal at every call until an argument changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.extents import varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS

from .ssa import Body, Op, aliases

#: attribute of an argument: it is equal at each call, or the caller has values that depend on it recomputed
FROZEN = "gflow.frozen"
#: on both functions that `gflow-freeze` makes: for each argument the number of the argument that it was; of the n-th
#: result of the prologue, -1 - n
GIVEN = "gflow.given"
#: on the function that is run once: the name of the one that reads its results
PROLOGUE = "gflow.prologue_of"

#: what a value depends on: on arguments that change with each call; on none; on frozen arguments alone
CALL, CONSTANT, ONCE = 0, 1, 2

#: attribute of an op whose weight stays float32: the reason
UNQUANTIZED = "gflow.unquantized"


def frozen_arguments(function: func.FuncOp, body: Body) -> set[int]:
    """The numbers of the arguments that are marked as frozen and that the function does not update."""
    if "arg_attrs" not in function.attributes:
        return set()
    updated = {a for a in aliases(function, body) if a is not None}
    given = ir.ArrayAttr(function.attributes["arg_attrs"])
    return {
        n
        for n, entry in enumerate(given)
        if FROZEN in (attrs := ir.DictAttr(entry))
        and ir.BoolAttr(attrs[FROZEN]).value
        and n not in updated
    }


def follow(function: func.FuncOp, body: Body) -> list[int]:
    """For each value, what it depends on: `CALL`, `CONSTANT` or `ONCE`.

    Ops with effects, and values that depend on a dynamic size, are `CALL`.
    """
    frozen = frozen_arguments(function, body)
    found = [CALL] * len(body.values)
    for n, v in enumerate(body.arguments):
        found[v] = ONCE if n in frozen else CALL
    for o in body.ops:
        kinds = {found[v] for v in o.operands}
        if not o.results or CALL in kinds or not _is_pure(o) or _varies(body, o):
            continue
        kind = ONCE if ONCE in kinds else CONSTANT
        for r in o.results:
            found[r] = kind
    return found


def _is_pure(o: Op) -> bool:
    """Whether an op is a pure function of its operands. ATen calls with operands count as pure: random ops read the
    seed, which is an argument."""
    definition = OPS.get(o.name)
    if definition is None or not definition.pure or len(o.op.regions):
        return False
    return bool(o.operands) or o.name in ("constant", "iota")


def _varies(body: Body, o: Op) -> bool:
    """Whether a result or an attribute of the op depends on a dynamic size."""
    if any(map(varies, (s for r in o.results for s in body.types[r].shape))):
        return True
    given = {k: v for k, v in read(OPS[o.name], o.op.attributes).items() if v is not None}
    return o.name != "constant" and _any(given, lambda x: type(x) is int and varies(x))


def _any(value: Any, test: Callable[[Any], bool]) -> bool:
    if isinstance(value, dict):
        return any(_any(v, test) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_any(v, test) for v in value)
    return test(value)

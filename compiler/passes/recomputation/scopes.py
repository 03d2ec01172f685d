"""The marks on ops that `gflow-checkpoint` reads: the module calls that an op is part of, and its phase.

    %0 = "gflow.exp"(%x) {gflow.scope = ["model.layers.0#0"]} : …
    %1 = "gflow.mul"(%dy, %0) {gflow.phase = "backward"} : …

`gflow.scope` lists the marked calls that an op is part of, outermost first. Each call has a unique name, so a module
that is called twice has two scopes. `gflow.phase` is "backward" or "optimizer"; ops without it belong to the forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Body
from gflow.dialects.mlir import func, ir

SCOPE, PHASE = "gflow.scope", "gflow.phase"


@dataclass
class Scope:
    """One call of a marked module: its name, and the numbers of its ops."""

    name: str
    ops: list[int]


def marked(function: func.FuncOp) -> bool:
    """Whether any op has marks."""
    return any(
        SCOPE in op.operation.attributes or PHASE in op.operation.attributes
        for op in function.regions[0].blocks[0].operations
    )


def scopes_of(body: Body) -> list[Scope]:
    """The outermost scopes of a function, in the order of their first ops.

    Ops without operands (constants, iotas) are not part of them.
    """
    found: dict[str, Scope] = {}
    for o in body.ops:
        if SCOPE in o.op.attributes and o.operands:
            name = _outermost(o.op)
            found.setdefault(name, Scope(name, [])).ops.append(o.index)
    return list(found.values())


def _outermost(op: ir.Operation) -> str:
    attribute = op.attributes[SCOPE]
    if isinstance(attribute, ir.ArrayAttr) and len(attribute) > 0:
        names = list(attribute)
        if all(isinstance(name, ir.StringAttr) for name in names):
            return names[0].value
    raise PassError(f"'{SCOPE}' must be an array of names, found {attribute}", op)


def in_forward(body: Body) -> list[bool]:
    """For each op, whether it is part of the forward."""
    return [PHASE not in o.op.attributes for o in body.ops]


def forget(op: ir.Operation) -> None:
    """Remove all marks of an op."""
    for name in (SCOPE, PHASE):
        if name in op.attributes:
            del op.attributes[name]


def leave_scope(op: ir.Operation) -> None:
    """Remove the outermost scope of an op."""
    rest = list(ir.ArrayAttr(op.attributes[SCOPE]))[1:]
    if rest:
        op.attributes[SCOPE] = ir.ArrayAttr.get(rest)
    else:
        del op.attributes[SCOPE]

"""Recompute the values of marked module calls in the backward instead of keeping them.

Before:

    %a = "gflow.exp"(%x) {gflow.scope = ["block#0"]} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %y = "gflow.matmul"(%a, %w) {gflow.scope = ["block#0"]}
       : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %l = "gflow.tanh"(%y) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %d = "gflow.matmul"(%y, %wt) {gflow.phase = "backward"}
       : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %g = "gflow.mul"(%d, %a) {gflow.phase = "backward"}
       : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>

After:

    %a = "gflow.exp"(%x) : …
    %y = "gflow.matmul"(%a, %w) : …
    %l = "gflow.tanh"(%y) : …
    %d = "gflow.matmul"(%y, %wt) : …
    %b:2 = "gflow.optimization_barrier"(%x, %d) …
    %a2 = "gflow.exp"(%b#0) : …
    %g = "gflow.mul"(%d, %a2) : …

A scope is one call of a marked module (`gflow.scope`). Two kinds of values of a scope are kept: those that the scope
reads, and those that the forward after it reads. All other values that the backward needs are recomputed, by copies of
the scope's ops before the first op that needs them. The operands of these copies pass through a barrier, together with
the gradient that arrives there. The barrier keeps other passes from merging the copies with the originals, and from
moving them before that gradient. Parameters and buffers need no barrier, since a value that depends only on them is not
recomputed. In a function that holds only a backward (of a pipeline stage), the first gradient is an argument, and
nothing reads the original ops.

Random numbers are functions of the state and the op's `stream`, so the copies draw the same mask. Calls into PyTorch
that draw random numbers (`gflow.aten` with `unique`) are not repeated; their results are kept. Updates of buffers
(running statistics) are results of the function that the backward does not read, so they are computed once.

Scopes may be nested. The copies of an inner scope form a scope within the recomputation of the outer one, and are
computed a third time in the inner backward. No marks remain after this pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from gflow.compiler.ir.ssa import Body, put_operands, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops.distribution import ORDERED
from gflow.dialects.ops.structure import BARRIER

from ..base import NoOptions, Pass
from .scopes import SCOPE, Scope, forget, in_forward, leave_scope, marked, scopes_of

#: the roles of arguments that are available during the whole step; values that depend only on them are not recomputed
_LASTING = frozenset({"parameter", "buffer", "optimizer_state", "scalar"})

#: the number of ops, from the first that needs a value of the scope, among which the arriving gradient is searched
_LOOK_AHEAD = 64


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Recompute values of the marked scopes of the function in the backward, in place."""
    if not marked(function):
        return
    lasting = _lasting_arguments(function)
    while True:
        body = read_body(function)
        scopes = scopes_of(body)
        if not scopes:
            break
        _one_level(body, scopes, lasting)
    for op in function.regions[0].blocks[0].operations:
        forget(op.operation)


def _lasting_arguments(function: func.FuncOp) -> set[int]:
    """The numbers of the arguments that need no barrier."""
    found = set()
    attrs = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    for i, given in enumerate(attrs):
        if "gflow.role" in given and ir.StringAttr(given["gflow.role"]).value in _LASTING:
            found.add(i)
    return found


@dataclass
class _Plan:
    """The recomputation of one scope.

    Attributes:
        values: the values that the backward reads from the copies.
        ops: the ops to copy, in order.
        inputs: the values that pass through the barrier.
        at: the op before which the copies are inserted.
        token: the gradient that passes through the barrier, too.
    """

    values: set[int]
    ops: list[int]
    inputs: list[int]
    at: int
    token: int


class _Level:
    """The analysis of a function for its outermost scopes."""

    def __init__(self, body: Body, scopes: list[Scope], lasting: set[int]) -> None:
        self.body, self.lasting = body, lasting
        self.forward = in_forward(body)
        self.scope_of = [-1] * len(body.ops)
        for n, scope in enumerate(scopes):
            for i in scope.ops:
                self.scope_of[i] = n
        self.latest = self._latest_gradients()
        # by value: the first op of the backward that reads it
        self.first: dict[int, int] = {}
        self.kept: set[int] = set(body.returned)
        for o in body.ops:
            for v in o.operands:
                p = body.producer[v]
                if p < 0 or self.scope_of[p] < 0 or self.scope_of[p] == self.scope_of[o.index]:
                    continue
                if self.forward[o.index]:
                    self.kept.add(v)
                else:
                    self.first.setdefault(v, o.index)

    def _latest_gradients(self) -> list[int]:
        """For each op, the last value of the backward before it; -1: none."""
        found, latest = [], -1
        for o in self.body.ops:
            found.append(latest)
            if not self.forward[o.index] and o.operands and o.results:
                latest = o.results[0]
        return found

    def plan(self, scope: Scope) -> _Plan | None:
        """The recomputation of a scope; None if it would save nothing."""
        body = self.body
        values = {
            v
            for i in scope.ops
            if not _draws(body, i)
            for v in body.ops[i].results
            if v in self.first and v not in self.kept
        }
        if not values:
            return None
        inside = set(scope.ops)
        needed = set(values)
        ops: list[int] = []
        inputs: dict[int, None] = {}
        for i in reversed(scope.ops):
            if needed.isdisjoint(body.ops[i].results) or _draws(body, i):
                continue
            ops.append(i)
            for v in body.ops[i].operands:
                p = body.producer[v]
                if p in inside and not _draws(body, p):
                    needed.add(v)
                elif not self._lasts(v):
                    inputs[v] = None
        if not inputs:
            return None
        at = min(self.first[v] for v in values)
        token = self._token(scope, at)
        if any(body.producer[v] >= at for v in (*inputs, token)):
            return None  # the scope continues after the start of the backward
        return _Plan(values, ops[::-1], list(inputs), at, token)

    def _lasts(self, value: int) -> bool:
        p = self.body.producer[value]
        return value in self.lasting if p < 0 else not self.body.ops[p].operands

    def _token(self, scope: Scope, at: int) -> int:
        """The gradient that arrives at op `at`: a value that the backward computed before and reads there."""
        body = self.body
        for o in body.ops[at : at + _LOOK_AHEAD]:
            if self.forward[o.index]:
                continue
            for v in o.operands:
                p = body.producer[v]
                if 0 <= p < at and not self.forward[p] and body.ops[p].operands:
                    return v
        if self.latest[at] >= 0:
            return self.latest[at]
        last = body.ops[scope.ops[-1]].results[0]
        if last in self.kept:
            return last  # the start of the backward
        # a function with only a backward (a pipeline stage): nothing reads the original ops
        return next(iter(self._given(at)), last)

    def _given(self, at: int) -> list[int]:
        """The arguments that only the backward reads, from op `at` on: gradients of other stages."""
        body = self.body
        forward = {v for o in body.ops if self.forward[o.index] for v in o.operands}
        return [
            v
            for o in body.ops[at : at + _LOOK_AHEAD]
            if not self.forward[o.index]
            for v in o.operands
            if body.producer[v] < 0 and v not in self.lasting and v not in forward
        ]


def _draws(body: Body, op: int) -> bool:
    """Whether an op must not be repeated: it would draw other random numbers, or is a collective."""
    o = body.ops[op]
    return o.name in ORDERED or (o.name == "aten" and "unique" in o.op.attributes)


def _one_level(body: Body, scopes: list[Scope], lasting: set[int]) -> None:
    """Process the outermost scopes. Afterwards, the copies of scopes nested in them are outermost."""
    level = _Level(body, scopes, lasting)
    plans: dict[int, list[_Plan]] = {}
    for scope in scopes:
        plan = level.plan(scope)
        if plan is not None:
            plans.setdefault(plan.at, []).append(plan)
    again: dict[int, ir.Value] = {}
    for o in body.ops:
        for plan in plans.get(o.index, ()):
            again.update(_copy(body, plan))
        if not level.forward[o.index]:
            put_operands(o.op, o.operands, again)
    for scope in scopes:
        for i in scope.ops:
            forget(body.ops[i].op)
    for o in body.ops:
        if not o.operands and SCOPE in o.op.attributes:
            del o.op.attributes[SCOPE]


def _copy(body: Body, plan: _Plan) -> dict[int, ir.Value]:
    """Copy the ops of a plan to where they are needed.

    Returns:
        The values that the backward reads from there on, for the plan's values and for those behind the barrier.
    """
    before = body.ops[plan.at].op
    with ir.InsertionPoint(before), before.location:
        held = _barriers(body, plan)
    new = dict(held)
    for i in plan.ops:
        o = body.ops[i]
        copy = o.op.clone(ip=ir.InsertionPoint(before))
        put_operands(copy, o.operands, new)
        leave_scope(copy)
        new.update(zip(o.results, copy.results))
    return held | {v: new[v] for v in plan.values}


def _barriers(body: Body, plan: _Plan) -> dict[int, ir.Value]:
    """Build barriers over the inputs and the token. An op has a limited number of segments, so there may be several."""
    inputs = sorted((v for v in plan.inputs if v != plan.token), key=lambda v: (body.types[v], v))
    runs = [list(run) for _, run in groupby(inputs, key=lambda v: body.types[v])]
    held: dict[int, ir.Value] = {}
    for start in range(0, max(len(runs), 1), MIXED_GROUPS - 1):
        group = [v for run in runs[start : start + MIXED_GROUPS - 1] for v in run]
        group.append(plan.token)
        op = builder.build_op(BARRIER, [body.values[v] for v in group])
        held.update(zip(group, op.results))
    if plan.token not in plan.inputs:
        del held[plan.token]
    return held


PASS = Pass("gflow-checkpoint", run, NoOptions, __doc__ or "")

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

#: arguments that are there all the time, and whose functions need not be recomputed
_LASTING = frozenset({"parameter", "buffer", "optimizer_state", "scalar"})

#: ops to look at, from the first that needs a value of the scope, for the gradient that arrives
_LOOK_AHEAD = 64


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Compute values of the marked scopes of the function again in the backward, in place."""
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
    """The numbers of the arguments that no barrier needs to hold back."""
    found = set()
    attrs = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    for i, given in enumerate(attrs):
        if "gflow.role" in given and ir.StringAttr(given["gflow.role"]).value in _LASTING:
            found.add(i)
    return found


@dataclass
class _Plan:
    """What is recomputed of one scope.

    values: those that the backward gets anew. ops: the ops to copy, in order. inputs: what goes
    through the barrier. at: the op in front of which they go. token: the gradient to wait for.
    """

    values: set[int]
    ops: list[int]
    inputs: list[int]
    at: int
    token: int


class _Level:
    """What is known of a function while its outermost scopes are worked on."""

    def __init__(self, body: Body, scopes: list[Scope], lasting: set[int]) -> None:
        self.body, self.lasting = body, lasting
        self.forward = in_forward(body)
        self.scope_of = [-1] * len(body.ops)
        for n, scope in enumerate(scopes):
            for i in scope.ops:
                self.scope_of[i] = n
        self.latest = self._latest_gradients()
        # value → the first op of the backward that reads it
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
        """For each op the last value that the backward has made before it; -1 without any."""
        found, latest = [], -1
        for o in self.body.ops:
            found.append(latest)
            if not self.forward[o.index] and o.operands and o.results:
                latest = o.results[0]
        return found

    def plan(self, scope: Scope) -> _Plan | None:
        """What to compute again of a scope; None where that would save nothing."""
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
            return None  # the scope goes on after the backward has begun
        return _Plan(values, ops[::-1], list(inputs), at, token)

    def _lasts(self, value: int) -> bool:
        p = self.body.producer[value]
        return value in self.lasting if p < 0 else not self.body.ops[p].operands

    def _token(self, scope: Scope, at: int) -> int:
        """The gradient that arrives at op `at`: what the backward made before it and reads there."""
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
            return last  # the backward begins here
        # a function that is a backward alone, as of a pipeline's stage: nothing needs the first run
        return next(iter(self._given(at)), last)

    def _given(self, at: int) -> list[int]:
        """Arguments that the backward alone reads, from op `at` on: gradients that others have made."""
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
    """Whether an op may not run again: it would give other numbers, or the other ranks would not take part."""
    o = body.ops[op]
    return o.name in ORDERED or (o.name == "aten" and "unique" in o.op.attributes)


def _one_level(body: Body, scopes: list[Scope], lasting: set[int]) -> None:
    """Work on the outermost scopes; the copies of what was nested in them are outermost then."""
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
    """Copy the ops of a plan in front of where they are needed.

    Returns: for the plan's values, and for what went through the barrier, what the backward reads
        from there on.
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
    """Barriers over the inputs and the token: few of them, an op has few runs of types."""
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

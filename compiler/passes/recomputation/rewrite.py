"""Writes recomputations into the IR: copies of ops, and users that read the copies' results."""

from __future__ import annotations

from gflow.compiler.ir.fused import is_read, narrow_fused
from gflow.compiler.ir.views import VIEW_OPS
from gflow.dialects.mlir import ir
from gflow.dialects.ops.structure import BARRIER

from .problem import Problem, repeat
from .replay import Replay


class _Writer:
    """The current version of each value at the writer's position in the program."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.current: dict[int, ir.Value] = {}  # by recomputed value: its second version
        self.views: dict[int, ir.Value] = {}  # by view of it: the same view of the second version

    def value(self, v: int) -> ir.Value:
        """The SSA value to read for value `v` here; views of second versions are built at the insertion point."""
        body, at = self.problem.body, self.problem.at
        if at[v].base not in self.current:
            return body.values[v]
        if v == at[v].base:
            return self.current[v]
        if v not in self.views:
            o = body.ops[body.producer[v]]
            if o.name == BARRIER:
                return self.value(o.operands[o.results.index(v)])
            operand = self.value(o.operands[0])
            copy = o.op.clone()
            copy.operands[0] = operand
            self.views[v] = copy.results[0]
        return self.views[v]


def rewrite(problem: Problem, result: Replay) -> None:
    """Write a replay's recomputations into the function of the problem."""
    body = problem.body
    writer = _Writer(problem)
    following = iter([*result.runs, (len(body.ops), None)])
    t, recipe = next(following)
    for o in body.ops:
        while recipe is not None and t == o.index:
            with ir.InsertionPoint(o.op):
                made = repeat(problem, recipe, writer.value)
            writer.current.update(zip(recipe.results, made))
            t, recipe = next(following)
        if _is_free_view(problem, o.index) or not writer.current:
            continue
        with ir.InsertionPoint(o.op):
            for n, v in enumerate(o.operands):
                if problem.at[v].base in writer.current:
                    o.op.operands[n] = writer.value(v)
    for o in reversed(body.ops):
        read = [is_read(r) for r in o.op.results]
        if read and not any(read):  # ops with results have no effects
            o.op.erase()
        elif any(read) and not all(read) and o.name == "fused":
            narrow_fused(o.op)


def _is_free_view(problem: Problem, index: int) -> bool:
    return problem.body.ops[index].name in VIEW_OPS and not problem.makes[index]

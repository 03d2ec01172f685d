"""The data of the search for values to recompute: producers, users, sizes, and the cost of recomputing a value.

Values are identified by their numbers in the function's body. Only values with their own memory count; a use of a view
counts as a use of its base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from gflow.compiler.ir.cost import Cost, cost_of, seconds, work_of
from gflow.compiler.ir.fused import is_bare
from gflow.compiler.ir.ssa import Body, Op, aliases, clone_into, clone_with, fused_kind
from gflow.compiler.ir.views import VIEW_OPS, Layout, is_view
from gflow.compiler.kernel.selection.select import scratch_of
from gflow.compiler.memory.liveness import TakesOver, aligned, lives_of, read_layouts
from gflow.compiler.targets import DEVICES, Target
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import ORDERED, WAIT
from gflow.dialects.ops.structure import BARRIER
from gflow.dialects.records import record

#: the mark of recomputed ops
RECOMPUTED = "gflow.recomputed"


@record
class Recipe:
    """How to recompute values.

    It has the op to repeat, the results that the copy computes (`partial`: not all of them), its operands, the bytes of
    results that are not needed, and the time in seconds.
    """

    op: int
    results: tuple[int, ...]
    partial: bool
    reads: tuple[int, ...]
    waste: int
    seconds: float


@dataclass
class _Region:
    """The region of a fused op: the operands (as numbers of inner values) and the cost of each inner op.

    values: the number of inner values, of which the block's arguments are the first.
    """

    reads: list[list[int]]
    makes: list[list[int]]
    costs: list[Cost]
    yields: list[int]
    arguments: int


@dataclass
class Problem:
    """The data of a function.

    Attributes:
        size: by value, its bytes in the arena; 0 for values elsewhere.
        maker: by value, the op that produces it; -1 for arguments, constants and views.
        readers: by value, its users in order, without views.
        reads, makes: by op, the values that it reads and produces.
        updated: by argument, the op that overwrites it.
        scratch: by op, the bytes that its kernel needs while it runs; ops without scratch are left out.
    """

    body: Body
    at: Sequence[Layout]
    device: str
    size: list[int]
    maker: list[int]
    readers: list[list[int]]
    reads: list[list[int]]
    makes: list[list[int]]
    updated: dict[int, int]
    scratch: Mapping[int, int] = field(default_factory=dict)
    takes_over: TakesOver = field(default_factory=TakesOver)
    _recipes: dict[tuple[int, ...], Recipe | None] = field(default_factory=dict)
    _regions: dict[int, _Region] = field(default_factory=dict)
    _saved: dict[tuple[int, frozenset[int]], float] = field(default_factory=dict)
    _costs: dict[int, Cost] = field(default_factory=dict)

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """For each value, the values whose recipes (so far) read it."""
        return {}

    @cached_property
    def takeovers(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """The fused ops whose results may take over an operand's buffer, each with the pairs (result, operand)."""
        found = []
        for o in self.body.ops:
            pairs = []
            bases = [self.at[v].base for v in o.operands] if o.name == "fused" else []
            for n, r in enumerate(o.results if bases else ()):
                pairs += [
                    (r, v)
                    for k, v in enumerate(o.operands)
                    if self.size[r]
                    and self.size[v] == self.size[r]
                    and bases[k] == v
                    and bases.count(v) == 1
                    and self.takes_over(o, k, n)
                ]
            if pairs:
                found.append((o.index, pairs))
        return found

    def recipe(self, *values: int) -> Recipe | None:
        """How to recompute results of one op; None if they cannot be recomputed."""
        if values not in self._recipes:
            found = self._recipes[values] = self._make_recipe(values)
            if found is not None and len(values) == 1:
                for v in found.reads:
                    self.users.setdefault(v, []).append(values[0])
        return self._recipes[values]

    def _make_recipe(self, values: tuple[int, ...]) -> Recipe | None:
        index = self.maker[values[0]]
        if index < 0:
            return None
        o = self.body.ops[index]
        if o.name in (BARRIER, WAIT, *ORDERED) or "unique" in o.op.attributes:
            return None
        device = DEVICES[self.device]
        if o.name != "fused" or len(values) == len(o.results):
            waste = sum(self.size[r] for r in o.results if r not in values)
            cost = self.cost(index)
            if not cost.bytes:  # a view that gflow-materialize turns into a copy
                cost = Cost(2 * sum(self.body.types[r].nbytes for r in o.results))
            return Recipe(
                index, values, False, tuple(self.reads[index]), waste, seconds(cost, device)
            )
        region = self.region(index)
        inner, operands, siblings = slice_of(region, [o.results.index(v) for v in values])
        read = [*(o.operands[n] for n in operands), *(o.results[n] for n in siblings)]
        reads = dict.fromkeys(self.at[v].base for v in read)
        cost = self._slice_cost(region, inner, [*values, *set(read)])
        return Recipe(index, values, True, tuple(reads), 0, seconds(cost, device))

    def _slice_cost(self, region: _Region, inner: Sequence[int], moved: Sequence[int]) -> Cost:
        """The cost of some inner ops of a kernel that loads and stores the values `moved`."""
        costs = [region.costs[i] for i in inner]
        contraction = next((c for c in costs if c.contraction), None)
        return Cost(
            sum(self.body.types[v].nbytes for v in moved),
            sum(c.flops for c in costs),
            contraction is not None,
            contraction.dtype if contraction else "",
        )

    def saved(self, index: int, dead: frozenset[int]) -> float:
        """The seconds that the first run of an op gets shorter when its results `dead` are not read from it."""
        key = (index, dead)
        if key not in self._saved:
            o = self.body.ops[index]
            device = DEVICES[self.device]
            live = [r for r in o.results if r not in dead]
            if not live:
                rest = 0.0
            elif o.name == "fused":
                region = self.region(index)
                inner, operands, _ = slice_of(
                    region, [o.results.index(v) for v in live], alone=True
                )
                read = {o.operands[n] for n in operands}
                rest = seconds(self._slice_cost(region, inner, [*live, *read]), device)
            else:
                rest = inf
            self._saved[key] = max(seconds(self.cost(index), device) - rest, 0.0)
        return self._saved[key]

    def cost(self, index: int) -> Cost:
        """The cost of the op with number `index`."""
        if index not in self._costs:
            self._costs[index] = cost_of(self.body.ops[index].op)
        return self._costs[index]

    def region(self, index: int) -> _Region:
        """The region of the fused op with number `index`."""
        if index not in self._regions:
            self._regions[index] = _read_region(self.body.ops[index].op)
        return self._regions[index]


def read_problem(function: func.FuncOp, device: str, target: Target | None = None) -> Problem:
    """Analyse a function; the result is valid until its IR changes.

    Args:
        function: fused kernels in their final order.
        device: the device whose roofline gives times.
        target: the target whose kernels' scratch counts as memory; None: no scratch is counted.
    """
    body, at = read_layouts(function)
    scratch: Mapping[int, int] = {}
    if target is not None:
        scratch = scratch_of(function, lives_of(function, read=(body, at)), target)
    size = [0] * len(body.values)
    maker = [-1] * len(body.values)
    readers: list[list[int]] = [[] for _ in body.values]
    reads: list[list[int]] = []
    makes: list[list[int]] = []
    placed = set(body.returned)
    for o in body.ops:
        made = [] if o.name == "constant" or is_view(o, at) else o.results
        view = o.name in VIEW_OPS and not made
        read = [] if view else list(dict.fromkeys(at[v].base for v in o.operands))
        reads.append(read)
        makes.append(made)
        for v in read:
            readers[v].append(o.index)
        for v in made:
            maker[v] = o.index
            size[v] = 0 if v in placed else aligned(body.types[v].nbytes)
    updated = {}
    for v in body.returned:
        if at[v].base != v:  # it is copied at the end
            maker[at[v].base] = -1
    for v, alias in zip(body.returned, aliases(function, body)):
        if alias is not None and maker[v] >= 0:
            updated[body.arguments[alias]] = maker[v]
    return Problem(body, at, device, size, maker, readers, reads, makes, updated, scratch)


def _read_region(fused: ir.Operation) -> _Region:
    block = fused.regions[0].blocks[0]
    number = {v: n for n, v in enumerate(block.arguments)}
    arguments = len(number)
    *ops, last = [op.operation for op in block.operations]
    reads, makes, costs = [], [], []
    for op in ops:
        reads.append([number[v] for v in op.operands])
        for r in op.results:
            number[r] = len(number)
        makes.append([number[r] for r in op.results])
        costs.append(work_of(op))
    return _Region(reads, makes, costs, [number[v] for v in last.operands], arguments)


def slice_of(
    region: _Region, results: Sequence[int], alone: bool = False
) -> tuple[list[int], list[int], list[int]]:
    """The inner ops and operands on which results of a fused op depend, and other results that are read instead.

    Other results of the op are read where they would otherwise have to be recomputed, too, unless `alone` is set. All
    lists are in order.
    """
    needed = {region.yields[n] for n in results}
    others = {v: n for n, v in enumerate(region.yields) if v not in needed and not alone}
    inner, siblings = [], []
    for i in range(len(region.reads) - 1, -1, -1):
        if needed.isdisjoint(region.makes[i]):
            continue
        known = [others[v] for v in region.makes[i] if v in others]
        if known:
            siblings += known
        else:
            inner.append(i)
            needed.update(region.reads[i])
    return inner[::-1], sorted(v for v in needed if v < region.arguments), sorted(siblings)


def repeat(problem: Problem, recipe: Recipe, value: Callable[[int], ir.Value]) -> list[ir.Value]:
    """Build the ops of a recipe at the insertion point.

    value: gives the SSA value to read for a value of the body.

    Returns:
        The values of `recipe.results`.
    """
    o = problem.body.ops[recipe.op]
    if recipe.partial:
        return _partly(problem, o, recipe, value)
    operands = [value(v) for v in o.operands]
    copy = clone_with(o.op, operands)
    made = dict(zip(o.results, copy.results))
    _mark(copy)
    return [made[v] for v in recipe.results]


def _partly(
    problem: Problem, o: Op, recipe: Recipe, value: Callable[[int], ir.Value]
) -> list[ir.Value]:
    """Build a fused op with some of the results, and the inner ops and operands on which they depend."""
    region = problem.region(o.index)
    wanted = sorted(o.results.index(v) for v in recipe.results)
    inner, numbers, siblings = slice_of(region, wanted)
    block = o.op.regions[0].blocks[0]
    *ops, last = [op.operation for op in block.operations]
    names = {ops[i].name.removeprefix("gflow.") for i in inner}
    if is_bare(names):
        return _alone(o, inner, wanted, {block.arguments[n]: value(o.operands[n]) for n in numbers})
    kind = fused_kind(o.op) or None
    if not any(region.costs[i].contraction for i in inner):
        kind = _kind_without(kind, names)
    outside = {block.arguments[n]: value(o.operands[n]) for n in numbers}
    outside |= {last.operands[n]: value(o.results[n]) for n in siblings}
    inner = _view_outside(ops, inner, outside)
    made = {n: outside[v] for n in wanted if (v := last.operands[n]) in outside}
    own = [n for n in wanted if n not in made]
    if not own:
        return [made[o.results.index(v)] for v in recipe.results]
    used = {v for i in inner for v in ops[i].operands}
    read = sorted((v for v in outside if v in used), key=builder.type_of)
    operands = [outside[v] for v in read]
    with o.op.location:
        types = [problem.body.types[o.results[n]] for n in own]
        fused = builder.build_op("fused", operands, {"kind": kind}, types)
    body = fused.regions[0].blocks.append(*[v.type for v in operands])
    new = dict(zip(read, body.arguments))
    with ir.InsertionPoint(body):
        for i in inner:
            clone_into(ops[i], new)
        with ir.Location.unknown():
            builder.build_op("yield", [new[last.operands[n]] for n in own], {}, [])
    _mark(fused)
    made |= zip(own, fused.results)
    return [made[o.results.index(v)] for v in recipe.results]


def _kind_without(kind: str | None, names: Set[str]) -> str | None:
    """The kind of a part of a kernel without a contraction: the epilogue of one reduces columns, if anything."""
    if "reduce" not in names:
        return "pointwise"
    return "column" if kind == "contraction" else kind


def _view_outside(
    ops: Sequence[ir.Operation], inner: Sequence[int], outside: dict[ir.Value, ir.Value]
) -> list[int]:
    """Build reshapes and slices of what a slice of a region reads as views in front of the kernel: the root of a
    contraction may be viewed in its epilogue, but a kernel of another kind reads it from memory.

    Args:
        ops: of the region.
        inner: the numbers of those in the slice.
        outside: the SSA value of each value that the slice reads; those of the views are added.

    Returns:
        The numbers of the other ops.
    """
    left = []
    for i in inner:
        viewed = ops[i].name in ("gflow.reshape", "gflow.slice")
        if viewed and ops[i].operands[0] in outside:
            clone_into(ops[i], outside)
        else:
            left.append(i)
    return left


def _alone(
    o: Op, inner: Sequence[int], wanted: Sequence[int], values: dict[ir.Value, ir.Value]
) -> list[ir.Value]:
    """Build the contraction of a fused op without its epilogue, outside of a region.

    values: the SSA values to read for arguments of the block.
    """
    *ops, last = [op.operation for op in o.op.regions[0].blocks[0].operations]
    for i in inner:
        _mark(clone_into(ops[i], values))
    return [values[last.operands[n]] for n in wanted]


def _mark(op: ir.Operation) -> None:
    op.attributes[RECOMPUTED] = ir.UnitAttr.get()

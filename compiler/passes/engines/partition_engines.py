"""Partition the program: ops for another engine form `gflow.engine` regions, the rest keeps gflow's kernels.

Before, where `%k` is a call into PyTorch that the engine does not support:

    %0 = "gflow.matmul"(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %1 = "gflow.tanh"(%0) : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %k = "gflow.aten"(%1) {overload = "aten.linalg_inv_ex.default", …} : …

After `gflow-partition-engines{engine=xla}`:

    %1 = "gflow.engine"(%x, %w) ({
    ^bb0(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>):
      %2 = "gflow.matmul"(%a, %b) : …
      %3 = "gflow.tanh"(%2) : …
      "gflow.engine_yield"(%3) : (tensor<64x64xf32>) -> ()
    }) {engine = "xla", …} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %k = "gflow.aten"(%1) {gflow.stays = "a call into PyTorch; the op stays with gflow", …} : …

Each op gets a number: how often its operands have crossed between the engine and gflow. Ops of the engine with the same
number form one region, so no two regions depend on each other cyclically. An op that could be in several regions joins
the last of them, which usually holds most of the step.

Modules that engines run (`gflow.engines = ["xla:model.encoder"]` on the function, from `gflow.XRTModule`) come first:
their engines get the ops of their forward and backward, by the locations of these ops. The remaining ops go to
`engine`, or stay with gflow if `modules-only` is set.

Some supported ops stay with gflow: regions that take the device less than `min-cost` microseconds, and checks of values
together with their operands where those are cheap, since an update may be written in place only after the last check.
Constants are copied into the regions that read them. Every op that stays has the reason in `gflow.stays`.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.engines.form import Call, Form, call_of
from gflow.compiler.engines.forms import READS, form_of
from gflow.compiler.engines.sizes import size_arguments
from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.locations import source_of
from gflow.compiler.ir.ssa import Body, clone_with, put_operands, read_body
from gflow.compiler.targets import DEVICES
from gflow.dialects import builder
from gflow.dialects.marks import STAYS, engine_at, engines_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.structure import CHECK, ENGINE, ENGINE_YIELD
from gflow.dialects.records import record

from ..base import Pass


@record
class Options:
    """Options of gflow-partition-engines."""

    engine: str = field(default="xla", metadata={"doc": "the engine"})
    modules_only: bool = field(
        default=False, metadata={"doc": "only modules that the function gives to engines"}
    )
    min_cost: float = field(
        default=20.0,
        metadata={"doc": "the shortest region, in microseconds of gflow's own kernels"},
    )


def run(function: func.FuncOp, options: Options) -> None:
    """Move the ops that an engine supports into `gflow.engine` regions, in place.

    Raises:
        PassError: there is no such engine.
    """
    modules = engines_of(function.operation)
    try:
        forms = {name: form_of(name) for name in modules.values()}
        if not options.modules_only:
            forms[options.engine] = form_of(options.engine)
    except ValueError as error:
        raise PassError(str(error), function) from None
    _part_checks(read_body(function))
    for engine in dict.fromkeys(modules.values()):
        _partition(function, engine, forms[engine], options.min_cost, modules)
    if not options.modules_only:
        _partition(function, options.engine, forms[options.engine], options.min_cost, None)


def _partition(
    function: func.FuncOp, engine: str, form: Form, min_cost: float, modules: dict[str, str] | None
) -> None:
    """Form the regions of one engine. modules: the modules that it runs; None: any op is for the engine."""
    body = read_body(function)
    why = _reasons(body, form)
    if modules is not None:
        for o in body.ops:
            source = source_of(o.op)
            if o.name != "constant" and engine_at(modules, source.phase, source.module) != engine:
                why[o.index] = _ELSEWHERE
    level = _levels(body, why)
    _drop_small(body, why, level, min_cost)
    for o in body.ops:
        if not why[o.index] and STAYS in o.op.attributes:  # the op belongs to its module's engine
            del o.op.attributes[STAYS]
        if why[o.index] not in ("", _ELSEWHERE):
            o.op.attributes[STAYS] = ir.StringAttr.get(why[o.index])
    regions: dict[int, list[int]] = {}
    for i, n in enumerate(level):
        if not why[i] and body.ops[i].name != "constant":
            regions.setdefault(n, []).append(i)
    if regions:
        # ONNX needs the sizes as operands for shapes that no operand has; XLA compiles a program for each size
        sizes = size_arguments(function) if READS[engine] == "onnx" else []
        wanted = dict.fromkeys(body.arguments[n] for n in sizes)
        _rewrite(body, why, level, regions, engine, wanted)


#: the maximal time in microseconds of ops that are duplicated for a check
_CHECK_COST = 20.0


def _part_checks(body: Body) -> None:
    """Duplicate cheap ops on which a check depends, so that the check can run before all regions."""
    device = DEVICES["cpu"]
    for check in body.ops:
        if check.name != CHECK:
            continue
        needed: set[int] = set()
        stack = list(check.operands)
        while stack:
            p = body.producer[stack.pop()]
            if p >= 0 and p not in needed:
                needed.add(p)
                stack += body.ops[p].operands
        ops = [body.ops[i] for i in sorted(needed)]
        if any(o.name == "aten" for o in ops):
            continue
        if sum(1e6 * seconds(cost_of(o.op), device) for o in ops) >= _CHECK_COST:
            continue
        known: dict[int, ir.Value] = {}
        with ir.InsertionPoint(check.op):
            for o in ops:
                copy = clone_with(o.op, [known.get(v, body.values[v]) for v in o.operands])
                known.update(zip(o.results, copy.results))
        put_operands(check.op, check.operands, known)


def _reasons(body: Body, form: Form) -> list[str]:
    """The reason why each op stays with gflow; "" for ops that the engine supports, and for constants."""
    calls: list[Call | None] = [None if o.name == "constant" else call_of(o.op) for o in body.ops]
    why = ["" if c is None else form.why_not(c) for c in calls]
    why = [_ELSEWHERE if o.name == ENGINE else w for o, w in zip(body.ops, why)]
    for o in reversed(body.ops):
        users = [body.ops[u] for r in o.results for u in body.users[r]]
        returned = any(r in body.returned for r in o.results)
        for_checks = all(u.name == CHECK or why[u.index] == _FOR_CHECK for u in users)
        if users and not returned and not why[o.index] and for_checks and o.name != "constant":
            why[o.index] = _FOR_CHECK
    return why


_FOR_CHECK = "only a check of values needs it"
_ELSEWHERE = "another engine runs it, or none does"


def _levels(body: Body, why: list[str]) -> list[int]:
    """For each op of the engine, the number of its region; for each other op, the last region that it depends on."""
    # an op of gflow that depends on no region has number -1, and runs before all of them
    first = [0] * len(body.ops)
    for o in body.ops:
        producers = [body.producer[v] for v in o.operands]
        producers = [p for p in producers if p >= 0 and body.ops[p].name != "constant"]
        if why[o.index]:
            first[o.index] = max((first[p] for p in producers), default=-1)
        else:
            first[o.index] = max((first[p] + bool(why[p]) for p in producers), default=0)
    last = max((n for n, w in zip(first, why) if not w), default=0)
    found = list(first)
    for o in reversed(body.ops):
        if why[o.index]:
            continue
        users = [u for r in o.results for u in body.users[r]]
        found[o.index] = min((found[u] for u in users), default=last)
        found[o.index] = max(found[o.index], first[o.index])
    return found


def _drop_small(body: Body, why: list[str], level: list[int], least: float) -> None:
    """Return ops of regions that take less than `least` microseconds to gflow."""
    device = DEVICES["cpu"]
    total: dict[int, float] = {}
    for o in body.ops:
        if not why[o.index] and o.name != "constant":
            total[level[o.index]] = total.get(level[o.index], 0.0) + 1e6 * seconds(
                cost_of(o.op), device
            )
    for o in body.ops:
        cost = total.get(level[o.index], 0.0)
        if not why[o.index] and o.name != "constant" and cost < least:
            why[o.index] = (
                f"its region would save {cost:.1f} microseconds of kernels, less than {least:g}"
            )


def _rewrite(
    body: Body, why: list[str], level: list[int], regions: dict[int, list[int]], engine: str,
    sizes: dict[int, None],
) -> None:  # fmt: skip
    """Replace ops by regions, in an order that respects all operands. sizes: additional operands of all regions."""
    new: dict[int, ir.Value] = {}
    with ir.InsertionPoint(body.terminator):
        for n in sorted({*level, *regions} | {-1}):
            if n in regions:
                _region(body, regions[n], new, engine, sizes)
            for o in body.ops:
                stays = why[o.index] or o.name == "constant"
                if stays and (level[o.index] == n if why[o.index] else n == -1):
                    o.op.move_before(body.terminator)
                    put_operands(o.op, o.operands, new)
    put_operands(body.terminator, body.returned, new)
    # users first, also those in other regions: an op with users cannot be erased
    for i in sorted((i for members in regions.values() for i in members), reverse=True):
        body.ops[i].op.erase()
    for o in body.ops:
        if o.name == "constant" and all(next(iter(r.uses), None) is None for r in o.op.results):
            o.op.erase()


def _region(
    body: Body,
    members: list[int],
    new: dict[int, ir.Value],
    engine: str,
    sizes: dict[int, None],
) -> None:
    """Build a region at the insertion point; its results are added to `new`."""
    inside = set(members)

    def constant(v: int) -> bool:
        p = body.producer[v]
        return p >= 0 and body.ops[p].name == "constant"

    def outside(v: int) -> bool:
        return v in body.returned or any(u not in inside for u in body.users[v])

    read = dict.fromkeys(v for i in members for v in body.ops[i].operands)
    read |= sizes
    # neighbouring operands of the same type form a segment
    by_type = {ty: n for n, ty in enumerate(dict.fromkeys(body.types))}
    inputs = sorted(
        (v for v in read if body.producer[v] not in inside and not constant(v)),
        key=lambda v: by_type[body.types[v]],
    )
    outputs = sorted(
        (r for i in members for r in body.ops[i].results if outside(r)),
        key=lambda v: by_type[body.types[v]],
    )
    given = [new.get(v, body.values[v]) for v in inputs]
    places = [body.ops[i].op.location for i in members]
    with ir.Location.fused(list(dict.fromkeys(places))[:16]):
        op = builder.build_op(ENGINE, given, {"engine": engine}, [body.types[v] for v in outputs])
    block = op.regions[0].blocks.append(*(v.type for v in given))
    known = dict(zip(inputs, block.arguments))
    with ir.InsertionPoint(block):
        for i in members:
            o = body.ops[i]
            for v in o.operands:
                if v not in known:  # a constant
                    known[v] = body.ops[body.producer[v]].op.clone().results[0]
            copy = clone_with(o.op, [known[v] for v in o.operands])
            known.update(zip(o.results, copy.results))
        with op.location:
            builder.build_op(ENGINE_YIELD, [known[v] for v in outputs], None, [])
    new.update(zip(outputs, op.results))


PASS = Pass("gflow-partition-engines", run, Options, __doc__)

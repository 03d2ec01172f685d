"""Move ops that depend only on frozen arguments into a second function, the prologue, which runs once.

Before:

    func.func @f(%x: tensor<8x4xf32>, %w: tensor<3x4xf32> {gflow.frozen = true},
                 %s: tensor<3xf32> {gflow.frozen = true}) -> tensor<8x3xf32> {
      %0 = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 3, 4>}
         : (tensor<3xf32>) -> tensor<3x4xf32>
      %1 = "gflow.mul"(%w, %0) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
      %2 = "gflow.transpose"(%1) {permutation = array<i64: 1, 0>}
         : (tensor<3x4xf32>) -> tensor<4x3xf32>
      %3 = "gflow.matmul"(%x, %2) : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
      return %3 : tensor<8x3xf32>
    }

After `gflow-freeze`:

    func.func @f(%x: tensor<8x4xf32>, %folded: tensor<3x4xf32> {…}) -> … {
      %0 = "gflow.transpose"(%folded) {permutation = array<i64: 1, 0>} : …
      %1 = "gflow.matmul"(%x, %0) : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
      return %1 : tensor<8x3xf32>
    }
    func.func @f_prologue(%w: tensor<3x4xf32>, %s: tensor<3xf32>) -> … {
      %0 = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 3, 4>} : …
      %1 = "gflow.mul"(%w, %0) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
      return %1 : tensor<3x4xf32>
    }

`gflow.given` of each function states, for each of its arguments, the argument of the original function, or -1, -2, …
for the results of the prologue. An argument is frozen if it has `gflow.frozen` and the function does not update it.

Views stay with their users, which can read strides, but a transposed weight of a convolution is stored in the order in
which it is read. Values more than `growth` times as large as their operands are computed at each call, and so are
values that depend on a dynamic dimension. Arguments without users are removed. A function without ops for the prologue
is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from gflow.compiler.ir.frozen import FROZEN, GIVEN, ONCE, PROLOGUE, follow, frozen_arguments
from gflow.compiler.ir.ssa import Body, Op, attributes_of, read_live_body
from gflow.compiler.ir.views import layouts
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import type_of

from ..base import Pass

#: the role of arguments that are results of the prologue
ROLE = "frozen"
#: values of at most so many bytes are stored, whatever the size of their operands
_SMALL = 1 << 12


@record
class FreezeOptions:
    """Options of gflow-freeze."""

    growth: int = field(
        default=4,
        metadata={"doc": "the most bytes of a stored value for each byte of its operands"},
    )


def run(function: func.FuncOp, options: FreezeOptions) -> None:
    """Split the function in two; the prologue is inserted after it."""
    if PROLOGUE in function.attributes or GIVEN in function.attributes:
        return
    body = read_live_body(function)
    if not frozen_arguments(function, body):
        return
    if _store_by_taps(function, body):
        body = read_live_body(function)
    stays, taken = _divide(function, body, options.growth)
    if taken:
        _split(function, body, stays, taken)


def _divide(function: func.FuncOp, body: Body, growth: int) -> tuple[set[int], list[int]]:
    """The numbers of the ops that run at each call, and the values that they read from the prologue, in order."""
    kinds = follow(function, body)
    movable = _movable(function, body, kinds, growth)
    needed = set(body.returned)
    stays: set[int] = set()
    taken: set[int] = set()
    for o in reversed(body.ops):
        wanted = {r for r in o.results if r in needed}
        once = bool(o.results) and all(kinds[r] == ONCE for r in o.results)
        if once and not wanted:
            continue
        if once and wanted <= movable:
            taken |= wanted
            continue
        stays.add(o.index)
        needed.update(o.operands)
    return stays, sorted(taken)


def _movable(function: func.FuncOp, body: Body, kinds: list[int], growth: int) -> set[int]:
    """The values that may be stored between calls."""
    at = layouts(function, body)
    made_of: list[frozenset[int]] = [frozenset()] * len(body.values)
    for v in body.arguments:
        made_of[v] = frozenset((v,))
    found = set()
    for o in body.ops:
        sources = frozenset().union(*(made_of[v] for v in o.operands))
        for r in o.results:
            made_of[r] = sources
            if kinds[r] != ONCE:
                continue
            most = max(growth * sum(body.types[v].nbytes for v in sources), _SMALL)
            is_view = o.name in _VIEWS and at[r].base != r
            if body.types[r].nbytes <= most and (not is_view or _is_kernel(body, o)):
                found.add(r)
    return found


_VIEWS = ("reshape", "transpose", "broadcast", "slice")


def _store_by_taps(function: func.FuncOp, body: Body) -> bool:
    """Store frozen weights [c, taps…, 1] of depthwise convolutions with contiguous channels, as kernels read them.

    A pair of transposes is inserted, whose intermediate value is stored. Returns whether there are such weights.
    """
    kinds, found = follow(function, body), False
    for o in body.ops:
        if _is_depthwise(o) and kinds[o.operands[1]] == ONCE:
            rank, found = len(type_of(o.op.operands[1]).shape), True
            with ir.InsertionPoint(o.op), o.op.location:
                stored = _transposed(o.op.operands[1], (*range(1, rank), 0))
                o.op.operands[1] = _transposed(stored, (rank - 1, *range(rank - 1)))
    return found


def _transposed(value: ir.Value, permutation: tuple[int, ...]) -> ir.Value:
    return builder.build("transpose", [value], {"permutation": permutation})


def _is_depthwise(o: Op) -> bool:
    """Whether each group of a channels-last convolution has one channel."""
    if o.name != "convolution":
        return False
    attrs, shape = read(OPS[o.name], o.op.attributes), type_of(o.op.operands[1]).shape
    return attrs["layout"] == "N*C" and attrs["groups"] == shape[0] > 1 and shape[-1] == 1


def _is_kernel(body: Body, o: Op) -> bool:
    """Whether a transpose gives the weight of a convolution, which would otherwise copy it at each call."""
    if o.name != "transpose":
        return False
    users = [body.ops[i] for i in body.users[o.results[0]]]
    convolutions = [u for u in users if u.name == "convolution" and u.operands[1] == o.results[0]]
    if not convolutions:
        return any(u.name == "transpose" and _is_kernel_by_taps(body, u) for u in users)
    return not _is_kernel_by_taps(body, o)


def _is_kernel_by_taps(body: Body, o: Op) -> bool:
    """Whether a transpose was inserted by `_store_by_taps`."""
    (v,) = o.operands
    p = body.producer[v]
    rank = len(body.types[v].shape)
    return (
        p >= 0
        and body.ops[p].name == "transpose"
        and tuple(read(OPS[o.name], o.op.attributes)["permutation"]) == (rank - 1, *range(rank - 1))
        and all(_is_depthwise(body.ops[i]) for i in body.users[o.results[0]])
    )


def _split(function: func.FuncOp, body: Body, stays: set[int], taken: list[int]) -> None:
    given = _attributes(function, len(body.arguments))
    prologue = _prologue(function, body, taken, given)
    block = function.regions[0].blocks[0]
    read = {v for i in stays for v in body.ops[i].operands} | set(body.returned)
    frozen = frozen_arguments(function, body)
    keeps = [n for n, v in enumerate(body.arguments) if v in read or n not in frozen]
    # the state of the random generator comes last
    behind = [n for n in keeps if _role(given[n]) == "rng"]
    order = [n for n in keeps if n not in behind] + [-1 - k for k in range(len(taken))] + behind
    attributes, count = [], len(body.arguments)
    for n in order:
        value = body.arguments[n] if n >= 0 else taken[-1 - n]
        made = block.add_argument(body.values[value].type, function.operation.location)
        body.values[value].replace_all_uses_with(made)
        attributes.append(given[n] if n >= 0 else _result_attributes(-1 - n, ROLE))
    for o in reversed(body.ops):
        if o.index not in stays:
            o.op.erase()
    for n in reversed(range(count)):
        block.erase_argument(n)
    renumbered = {n: i for i, n in enumerate(order) if n >= 0}
    _finish(function, block, order, [ir.DictAttr.get(a) for a in attributes])
    _renumber(function, renumbered)
    read_live_body(function)  # erases constants that only the prologue uses
    prologue.operation.attributes[PROLOGUE] = function.operation.attributes["sym_name"]


def _prologue(
    function: func.FuncOp, body: Body, taken: list[int], given: list[dict[str, ir.Attribute]]
) -> func.FuncOp:
    needed = set(taken)
    ops: list[Op] = []
    for o in reversed(body.ops):
        if not needed.isdisjoint(o.results):
            ops.append(o)
            needed.update(o.operands)
    ops.reverse()
    arguments = [n for n, v in enumerate(body.arguments) if v in needed]
    types = [body.values[body.arguments[n]].type for n in arguments]
    results = [body.values[v].type for v in taken]
    name = ir.StringAttr(function.operation.attributes["sym_name"]).value
    with function.operation.location, ir.InsertionPoint(function.operation.block):
        made = func.FuncOp(f"{name}_prologue", ir.FunctionType.get(types, results))
        made.operation.move_after(function.operation)
        block = ir.Block.create_at_start(made.operation.regions[0], types)
        now: dict[int, ir.Value] = {
            body.arguments[n]: a for n, a in zip(arguments, block.arguments)
        }
        with ir.InsertionPoint(block):
            for o in ops:
                _copy(o, now)
            func.ReturnOp([now[v] for v in taken])
    _finish(made, block, arguments, [ir.DictAttr.get(given[n]) for n in arguments])
    named = [_result_attributes(k) for k in range(len(taken))]
    made.operation.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in named])
    return made


def _copy(o: Op, now: dict[int, ir.Value]) -> None:
    """Copy an op, with its operands replaced by `now`."""
    copy = o.op.clone()
    for n, v in enumerate(o.operands):
        copy.operands[n] = now[v]
    now.update(zip(o.results, copy.results))


def _finish(
    function: func.FuncOp, block: ir.Block, order: Iterable[int], attributes: list[ir.Attribute]
) -> None:
    """Set the type, the arguments' attributes and `gflow.given` of a function whose block has changed."""
    own = function.operation.attributes
    returned = block.operations[len(block.operations) - 1].operands
    types = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in returned])
    own["function_type"] = ir.TypeAttr.get(types)
    own["arg_attrs"] = ir.ArrayAttr.get(attributes)
    own[GIVEN] = ir.DenseI64ArrayAttr.get(list(order))


def _renumber(function: func.FuncOp, numbers: Mapping[int, int]) -> None:
    """Update the argument numbers in `gflow.alias` of results."""
    own = function.operation.attributes
    if "res_attrs" not in own:
        return
    found = []
    for entry in ir.ArrayAttr(own["res_attrs"]):
        attrs = {a.name: a.attr for a in ir.DictAttr(entry)}
        if "gflow.alias" in attrs:
            number = numbers[ir.IntegerAttr(attrs["gflow.alias"]).value]
            attrs["gflow.alias"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        found.append(ir.DictAttr.get(attrs))
    own["res_attrs"] = ir.ArrayAttr.get(found)


def _attributes(function: func.FuncOp, count: int) -> list[dict[str, ir.Attribute]]:
    """The attributes of each argument, without `gflow.frozen`."""
    own = attributes_of(function.operation)
    if "arg_attrs" not in own:
        return [{} for _ in range(count)]
    return [
        {a.name: a.attr for a in ir.DictAttr(entry) if a.name != FROZEN}
        for entry in ir.ArrayAttr(own["arg_attrs"])
    ]


def _role(attributes: Mapping[str, ir.Attribute]) -> str:
    return ir.StringAttr(attributes["gflow.role"]).value if "gflow.role" in attributes else ""


def _result_attributes(k: int, role: str = "") -> dict[str, ir.Attribute]:
    named: dict[str, ir.Attribute] = {"gflow.name": ir.StringAttr.get(f"frozen.{k}")}
    return {**named, "gflow.role": ir.StringAttr.get(role)} if role else named


PASS = Pass("gflow-freeze", run, FreezeOptions, __doc__ or "")

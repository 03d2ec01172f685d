"""SPMD partitioning: turn a program over global values into the program of each rank, with collectives.

Before (after `gflow-propagate-shardings`, over `gflow.mesh = {axes = ["tp"], sizes = array<i64: 2>}`):

    %1 = "gflow.matmul"(%0, %v) {gflow.operand_shardings = [["S(1)"], ["S(0)"]], gflow.sharding = [["P(sum)"]]}
        : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %2 = "gflow.tanh"(%1) {gflow.operand_shardings = [["B"]], gflow.sharding = [["B"]]} : …

After:

    %1 = "gflow.matmul"(%0, %v) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %2, %t = "gflow.collective"(%1) {kind = "all_reduce", axes = ["tp"], ranks = 2 : i64, reduction = "sum", …}
        : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<i8>)
    %3 = "gflow.tanh"(%2) : …

All ranks run the same IR. Values that depend on the rank come from `gflow.shard`: the shard of a global value, the
offset of its positions, and its random numbers (different shards of a value draw different numbers, ranks with the
same shard draw equal ones). A value is resharded once for each sharding that its readers need, before the first such
reader. Dimensions are split evenly or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gflow.compiler.ir.collectives import GRADIENT, build_collective, set_types, thread
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Op, attributes_of, read_body
from gflow.dialects import builder
from gflow.dialects.attributes import from_mlir, read, to_mlir
from gflow.dialects.distribution.mesh import COPIES, SHARDING
from gflow.dialects.distribution.sharding import local_type, reduction, split_dim
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr
from gflow.dialects.ops import OPS
from gflow.dialects.ops.sharding import RESHARD
from gflow.dialects.types import TensorType

from ..base import NoOptions, Pass
from .local_ops import LOOKUPS, axes_of, iota, local_attributes, lookup, other_numbers
from .moves import Moves, Placed
from .propagate import OPERANDS, WHY, required_mesh
from .resharding import WHOLE, bytes_sent

_OURS = (SHARDING, OPERANDS, WHY)


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Replace the function by the program of one rank, in place."""
    _Partition(function).run()
    thread(function)


class _Partition:
    """The partitioning of one function. versions: for each global value, its local values by placement."""

    def __init__(self, function: func.FuncOp) -> None:
        self.function, self.mesh = function, required_mesh(function)
        self.body = read_body(function)
        self.placed: dict[int, Placed] = {}
        for v, placed in zip(self.body.arguments, self._ends("arg_attrs")):
            self.placed[v] = placed
        for o in self.body.ops:
            for v, placed in zip(o.results, _of_op(o, SHARDING)):
                self.placed[v] = placed
        self.versions: dict[int, dict[Placed, ir.Value]] = {}

    def run(self) -> None:
        block = self.function.regions[0].blocks[0]
        self.moves = Moves(self.mesh, block)
        ends = self._ends("res_attrs")
        for v in self.body.arguments:
            argument = self.body.values[v]
            argument.set_type(self.local(v, self.placed[v]).mlir())
            self.versions[v] = {self.placed[v]: argument}
        for o in self.body.ops:
            with ir.InsertionPoint(o.op), o.op.location:
                self._visit(o)
        terminator = self.body.terminator
        with ir.InsertionPoint(terminator), terminator.location:
            for n, (v, placed) in enumerate(zip(self.body.returned, ends, strict=True)):
                terminator.operands[n] = self.as_needed(v, placed)
        for o in reversed(self.body.ops):
            o.op.erase()
        set_types(self.function)

    def _ends(self, listed: str) -> list[Placed]:
        """The shardings of arguments ("arg_attrs") or results ("res_attrs").

        Raises:
            PassError: a sharding is missing.
        """
        found = []
        attributes = attributes_of(self.function.operation)
        for n, given in enumerate(ir.ArrayAttr(attributes[listed]) if listed in attributes else ()):
            attrs = ir.DictAttr(given)
            if SHARDING not in attrs:
                raise _missing(f"of {listed[:3]} {n}", self.function)
            found.append(tuple(from_mlir(Attr("str[]"), attrs[SHARDING])))
        ends = self.body.arguments if listed == "arg_attrs" else self.body.returned
        if len(found) != len(ends):
            raise _missing("of arguments and results", self.function)
        return found

    def local(self, v: int, placed: Placed) -> TensorType:
        """The local type of a value with these placements."""
        try:
            return local_type(self.body.types[v], placed, self.mesh.sizes)
        except ValueError as error:
            producer = self.body.producer[v]
            at = self.function if producer < 0 else self.body.ops[producer].op
            raise PassError(str(error), at) from None

    def as_needed(self, v: int, need: Placed) -> ir.Value:
        """The local value with the placements `need`, resharded from the cheapest version if necessary."""
        versions = self.versions[v]
        if need not in versions:
            sizes, nbytes = self.mesh.sizes, self.body.types[v].nbytes

            def cost(have: Placed) -> float:
                pairs = zip(have, need, sizes)
                return sum(bytes_sent(h, n, nbytes, ranks) for h, n, ranks in pairs)

            have = min(versions, key=cost)
            versions[need] = self.moves.move(versions[have], have, need)
        return versions[need]

    def _visit(self, o: Op) -> None:
        needs = _of_op(o, OPERANDS)
        marked = o.name == RESHARD and GRADIENT in o.op.attributes
        operands = [
            self.as_needed(v, n) for v, n in zip(o.operands, needs, strict=True) if not marked
        ]
        gives = [self.placed[v] for v in o.results]
        types = [self.local(v, placed) for v, placed in zip(o.results, gives)]
        for v, placed, made in zip(
            o.results, gives, self._local(o, operands, needs, gives, types), strict=True
        ):
            self.versions[v] = {placed: made}

    def _local(
        self,
        o: Op,
        operands: list[ir.Value],
        needs: Sequence[Placed],
        gives: Sequence[Placed],
        types: Sequence[TensorType],
    ) -> Sequence[ir.Value]:
        """Build the local version of an op; returns its results."""
        if o.name == RESHARD:
            return [self._gradient(o, gives[0])] if GRADIENT in o.op.attributes else operands
        if o.name == "constant":
            whole = _copied(o.op, operands, {}, [self.body.types[o.results[0]]])[0]
            return [self.moves.move(whole, (WHOLE,) * len(self.mesh.axes), gives[0])]
        attrs: dict[str, Any] = read(OPS[o.name], o.op.attributes)
        if o.name == "iota":
            return [iota(attrs, gives[0], types[0], self.moves)]
        if o.name in LOOKUPS and (axes := axes_of(needs[0], attrs["dim"])):
            return [lookup(o.name, operands, attrs["dim"], axes, self.moves)]
        drawn = self._drawn_from(o, attrs)
        if drawn is not None:
            every = [*needs, *gives]
            axes = [
                a
                for a in range(len(self.mesh.axes))
                if any(split_dim(placed[a]) is not None for placed in every)
            ]
            operands[drawn] = other_numbers(operands[drawn], axes, self.moves)
        local = [builder.type_of(v) for v in operands]
        changed = local_attributes(o.name, attrs, local, needs, types, self.mesh.sizes)
        return _copied(o.op, operands, changed, types)

    def _gradient(self, o: Op, need: Placed) -> ir.Value:
        """A gradient with the placements of its parameter.

        The sum over ranks with copies of the parameter is the last step, a single collective with `gflow.gradient`.
        """
        (v,) = o.operands
        copies = from_mlir(Attr("str[]"), o.op.attributes[COPIES])
        have, axes = self.placed[v], self.mesh.axes
        added = [n for n, a in enumerate(axes) if a in copies and reduction(have[n]) is not None]
        before = tuple(have[n] if n in added else placed for n, placed in enumerate(need))
        if not added or need in self.versions[v]:
            return self.as_needed(v, need)
        made = build_collective(
            self.as_needed(v, before),
            "all_reduce",
            reduction=reduction(have[added[0]]),
            axes=tuple(axes[n] for n in added),
            ranks=prod(self.mesh.sizes[n] for n in added),
        )
        made.owner.operation.attributes[GRADIENT] = o.op.attributes[GRADIENT]
        self.versions[v][need] = made
        return made

    def _drawn_from(self, o: Op, attrs: dict[str, Any]) -> int | None:
        """The number of the operand that is the state of the random generator; None for ops without random numbers."""
        rule = OPS[o.name].sharding
        if rule is None:
            return None
        types = ([self.body.types[v] for v in o.operands], [self.body.types[v] for v in o.results])
        found = rule.of(*types, attrs)
        return None if found is None else found.draws


def _of_op(o: Op, name: str) -> list[Placed]:
    if name not in o.op.attributes:
        raise _missing("of an op", o.op)
    return [tuple(from_mlir(Attr("str[]"), a)) for a in ir.ArrayAttr(o.op.attributes[name])]


def _missing(what: str, op: Any) -> PassError:
    return PassError(f"the sharding {what} is missing: gflow-propagate-shardings runs before", op)


def _copied(
    op: ir.Operation,
    operands: Sequence[ir.Value],
    changed: dict[str, Any],
    types: Sequence[TensorType],
) -> list[ir.Value]:
    """Build a copy of an op on other operands, with changed attributes and result types."""
    definition = OPS[op.name.removeprefix("gflow.")]
    attributes = {k: v for k, v in attributes_of(op).items() if k not in _OURS}
    for name, value in changed.items():
        attributes[name] = to_mlir(definition.attrs[name], value)
    results = [ty.mlir() for ty in types]
    if definition.mixed:
        attributes["operandSegmentSizes"] = builder.segment_sizes([v.type for v in operands])
        if definition.results is None:
            attributes["resultSegmentSizes"] = builder.segment_sizes(results)
    if definition.regions:
        raise PassError(
            "fused ops cannot be partitioned; run gflow-partition before gflow-fuse", op
        )
    made = ir.Operation.create(
        op.name, results=results, operands=list(operands), attributes=attributes, loc=op.location
    )
    return list(made.results)


PASS = Pass("gflow-partition", run, doc=__doc__ or "")

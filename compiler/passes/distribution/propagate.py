"""Propagate the shardings of arguments and results to all values, with the fewest bytes of resharding.

Before:

    module attributes {gflow.mesh = {axes = ["tp"], sizes = array<i64: 2>}} {
      func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x16xf32> {gflow.sharding = ["S(1)"]},
                   %v: tensor<16x8xf32> {gflow.sharding = ["S(0)"]}) -> tensor<4x8xf32> {
        %0 = "gflow.matmul"(%x, %w) : …
        %1 = "gflow.tanh"(%0) : …
        %2 = "gflow.matmul"(%1, %v) : …
        return %2

After, in addition to the attributes above:

    %0 = "gflow.matmul"(%x, %w) {gflow.operand_shardings = [["B"], ["S(1)"]], gflow.sharding = [["S(1)"]],
                                 gflow.why = "tp: n is split"} : …
    %1 = "gflow.tanh"(%0) {gflow.operand_shardings = [["S(1)"]], gflow.sharding = [["S(1)"]], …} : …
    %2 = "gflow.matmul"(%1, %v) {gflow.operand_shardings = [["S(1)"], ["S(0)"]], gflow.sharding = [["P(sum)"]],
                                 gflow.why = "tp: k is split, each rank has a sum of its part"} : …

Each result of the function gets a `gflow.sharding`, too. The axes of the mesh are handled one after the other. For
each, a search chooses among the shardings that the rules of the ops allow (`search.py`). Where an op needs an operand
in another sharding than its producer gives, `gflow-partition` inserts a collective.

An argument without a sharding is replicated. A result that updates an argument has the sharding of the argument;
other results are never partial. An op without a rule, such as `gflow.aten`, runs on global values, and its
`gflow.why` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.compiler.ir.collectives import GRADIENT, attributes_read
from gflow.compiler.ir.cost import cost_of
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Body, Op, aliases, read_live_body
from gflow.dialects.attributes import from_mlir, read, to_mlir
from gflow.dialects.distribution.mesh import COPIES, SHARDING, Mesh, mesh_of
from gflow.dialects.distribution.sharding import Factors, check_sharding, reduction, split_dim
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr, VerifyError
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import ORDERED, SHARD
from gflow.dialects.ops.sharding import OPEN, RESHARD

from ..base import NoOptions, Pass
from .choices import Choice, choices
from .parts import check_parts
from .resharding import ADDED, WHOLE, bytes_sent
from .search import Problem, Search, place

#: attributes of an op: the shardings that it needs of its operands, and the reason of its sharding
OPERANDS, WHY = "gflow.operand_shardings", "gflow.why"


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Write shardings into every op of the function.

    Raises:
        PassError: the function has no mesh.
    """
    mesh = required_mesh(function)
    body = read_live_body(function)
    _Propagation(function, body, mesh).run()


def required_mesh(function: func.FuncOp) -> Mesh:
    """The mesh of the function's module.

    Raises:
        PassError: it is malformed, or there is none.
    """
    try:
        mesh = mesh_of(function)
    except VerifyError as error:
        raise PassError(str(error), function) from None
    if mesh is None:
        raise PassError("needs a mesh: 'gflow.mesh' on the module", function)
    return mesh


class _Propagation:
    """The propagation in one function.

    placed: the placements of each value on the axes so far. needed: the same for each op and operand.
    """

    def __init__(self, function: func.FuncOp, body: Body, mesh: Mesh) -> None:
        self.function, self.body, self.mesh = function, body, mesh
        self.arguments = [self._given("arg_attrs", n, v) for n, v in enumerate(body.arguments)]
        self.returned = self._returned()
        self.rules = [_rule(o, body) for o in body.ops]
        self.work = [float(cost_of(o.op).flops) for o in body.ops]
        self.placed: list[list[str]] = [[] for _ in body.values]
        self.needed: list[list[list[str]]] = [[[] for _ in o.operands] for o in body.ops]
        self.split: list[dict[str, int]] = [{} for _ in body.ops]
        self.why: list[list[str]] = [[] for _ in body.ops]
        self.chosen: list[Sequence[Choice]] = []

    def run(self) -> None:
        for axis in range(len(self.mesh.axes)):
            self._record(axis, place(self._problem(axis)))
        stated = [v for v, given in zip(self.body.arguments, self.arguments) if given is not None]
        check_parts(self.body, self.placed, self.chosen, self.mesh, stated)
        self._write()

    def _given(self, listed: str, n: int, value: int) -> tuple[str, ...] | None:
        """The sharding that an argument or a result states; None: it states none."""
        if listed not in self.function.attributes:
            return None
        attrs = ir.DictAttr(ir.ArrayAttr(self.function.attributes[listed])[n])
        if SHARDING not in attrs:
            return None
        try:
            found = tuple(from_mlir(Attr("str[]"), attrs[SHARDING]))
            check_sharding(found, self.body.types[value], self.mesh.sizes)
        except ValueError as error:
            name = f" '{ir.StringAttr(attrs['gflow.name']).value}'" if "gflow.name" in attrs else ""
            what = "argument" if listed == "arg_attrs" else "result"
            raise PassError(f"{what} {n}{name}: {error}", self.function) from None
        return found

    def _returned(self) -> list[tuple[str, ...] | None]:
        """The sharding that each result must have: the stated one, or that of the argument it updates; None: any."""
        found: list[tuple[str, ...] | None] = []
        for n, alias in enumerate(aliases(self.function, self.body)):
            stated = self._given("res_attrs", n, self.body.returned[n])
            if stated is None and alias is not None:
                stated = self.arguments[alias] or (WHOLE,) * len(self.mesh.axes)
            found.append(stated)
        return found

    def _problem(self, axis: int) -> Problem:
        body, ranks = self.body, self.mesh.sizes[axis]
        options = [
            choices(
                None if self._works_along(o, axis) else rule,
                len(o.operands),
                len(o.results),
                ranks,
                split,
            )
            for o, rule, split in zip(body.ops, self.rules, self.split)
        ]
        return Problem(
            ranks,
            [self._bytes(v) for v in range(len(body.values))],
            {
                v: given[axis]
                for v, given in zip(body.arguments, self.arguments)
                if given is not None
            },
            [
                (v, ADDED if given is None else given[axis])
                for v, given in zip(body.returned, self.returned)
            ],
            options,
            [o.operands for o in body.ops],
            [o.results for o in body.ops],
            self.work,
            frozenset(
                o.index
                for o, rule in zip(body.ops, self.rules)
                if rule is not None and rule.follows
            ),
            {o.index: key for o in body.ops if (key := _drawn(o)) is not None},
            {o.index: choice for o in body.ops if (choice := self._forced(o, axis)) is not None},
            self._terms(axis),
        )

    def _bytes(self, v: int) -> float:
        """The bytes of a value that the ranks of the next axis hold together."""
        shared = 1
        for placement, size in zip(self.placed[v], self.mesh.sizes):
            shared *= size if split_dim(placement) is not None else 1
        return self.body.types[v].nbytes / shared

    def _works_along(self, o: Op, axis: int) -> bool:
        """Whether an op is a collective along an axis, along which values differ between ranks."""
        return o.name in ORDERED and self.mesh.axes[axis] in attributes_read(o.op).get("axes", ())

    def _is_added(self, o: Op, axis: int) -> bool:
        """Whether an op reshards a gradient that is a partial sum along an axis."""
        copies = o.op.attributes[COPIES] if o.name == RESHARD and COPIES in o.op.attributes else ()
        return self.mesh.axes[axis] in [ir.StringAttr(a).value for a in copies]

    def _terms(self, axis: int) -> frozenset[int]:
        """The values that may stay partial sums along an axis.

        Only gradients and results that are partial themselves depend on them, and depend on them linearly.
        """
        body = self.body
        found = {v for o in body.ops if self._is_added(o, axis) for v in o.operands}
        for v, need in zip(body.returned, self.returned):
            if need is not None and reduction(need[axis]) is not None:
                found.add(v)
        for o in reversed(body.ops):
            rule = self.rules[o.index]
            if rule is not None and not found.isdisjoint(o.results):
                linear = {o.operands[i] for operands in rule.linear for i in operands}
                found |= {v for v in linear if len(body.users[v]) == 1}
        return frozenset(found)

    def _forced(self, o: Op, axis: int) -> Choice | None:
        """The placement that the author demands of a value along an axis; None: none is demanded.

        A gradient should be a partial sum along axes along which the parameter is replicated: it is summed there in any
        case, with ZeRO by a reduce-scatter.
        """
        if o.name != RESHARD:
            return None
        wanted = read(OPS[RESHARD], o.op.attributes)["sharding"]
        try:
            known = [WHOLE if p == OPEN else p for p in wanted]
            check_sharding(known, self.body.types[o.results[0]], self.mesh.sizes)
        except ValueError as error:
            raise PassError(str(error), o.op) from None
        own, rule = wanted[axis], self.rules[o.index]
        if own == OPEN:
            return None
        if self._is_added(o, axis):
            return Choice(("P(sum)",), (own,))
        d = split_dim(own)
        factor = "" if d is None or rule is None else rule.results[0][d][0]
        return Choice((own,), (own,), factor)

    def _record(self, axis: int, found: Search) -> None:
        ranks, name = self.mesh.sizes[axis], self.mesh.axes[axis]
        sizes = [self._bytes(v) for v in range(len(self.body.values))]
        self.chosen.append(found.chosen)
        for o, choice in zip(self.body.ops, found.chosen):
            for have, need in zip(self.needed[o.index], choice.needs):
                have.append(need)
            if choice.factor:
                split = self.split[o.index]
                split[choice.factor] = split.get(choice.factor, 1) * ranks
            said = _why(o, choice, self.rules[o.index], o.index in found.p.forced)
            moves = [
                f"operand {i} comes as {found.have[v]}"
                + (f" ({sent:.0f} bytes sent)" if sent else "")
                for i, (v, need) in enumerate(zip(o.operands, choice.needs))
                if found.have[v] != need
                for sent in [bytes_sent(found.have[v], need, sizes[v], ranks)]
            ]
            if said or moves:
                self.why[o.index].append(f"{name}: {'; '.join([*filter(None, [said]), *moves])}")
        for v, placement in enumerate(found.have):
            self.placed[v].append(placement)

    def _write(self) -> None:
        for o in self.body.ops:
            o.op.attributes[OPERANDS] = _shardings(self.needed[o.index])
            o.op.attributes[SHARDING] = _shardings([self.placed[v] for v in o.results])
            if self.why[o.index]:
                o.op.attributes[WHY] = ir.StringAttr.get(". ".join(self.why[o.index]))
        self._write_ends("arg_attrs", [self.placed[v] for v in self.body.arguments])
        ends = [
            list(given) if given is not None else _without_addends(self.placed[v])
            for v, given in zip(self.body.returned, self.returned)
        ]
        self._write_ends("res_attrs", ends)

    def _write_ends(self, listed: str, placements: Sequence[Sequence[str]]) -> None:
        if listed in self.function.attributes:
            old = [ir.DictAttr(a) for a in ir.ArrayAttr(self.function.attributes[listed])]
        else:
            old = [ir.DictAttr.get({}) for _ in placements]
        self.function.attributes[listed] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({**{e.name: e.attr for e in attrs}, SHARDING: _sharding(placed)})
                for attrs, placed in zip(old, placements)
            ]
        )


def _without_addends(placed: Sequence[str]) -> list[str]:
    return [WHOLE if reduction(p) is not None else p for p in placed]


def _sharding(placed: Sequence[str]) -> ir.Attribute:
    return to_mlir(Attr("str[]"), placed)


def _shardings(values: Sequence[Sequence[str]]) -> ir.Attribute:
    return ir.ArrayAttr.get([_sharding(placed) for placed in values])


def _rule(o: Op, body: Body) -> Factors | None:
    """The sharding rule of an op.

    Raises:
        PassError: the program is already partitioned.
    """
    definition, found = OPS[o.name], None
    attrs: dict[str, Any] = read(definition, o.op.attributes)
    if definition.sharding is not None:
        types = ([body.types[v] for v in o.operands], [body.types[v] for v in o.results])
        found = definition.sharding.of(*types, attrs)
    if o.name == SHARD or (o.name in ORDERED and (found is None or not attrs["axes"])):
        raise PassError("the program already has collectives: it is partitioned already", o.op)
    return found


def _drawn(o: Op) -> object | None:
    """A key of ops that must draw the same random numbers: attention and its gradient; None for other ops."""
    if o.name in ("attention", "attention_grad") and "stream" in o.op.attributes:
        return ir.IntegerAttr(o.op.attributes["stream"]).value
    return None


def _why(o: Op, choice: Choice, rule: Factors | None, forced: bool) -> str:
    if forced:
        return "as the parameter" if GRADIENT in o.op.attributes else "as the author says"
    if rule is None:
        return f"on whole values, since gflow.{o.name} has no sharding rule"
    if choice.factor:
        added = any(reduction(p) is not None for p in choice.gives)
        told = f"{choice.factor} is split"
        if choice.factor in rule.masked:
            return f"{told}, each rank looks up what it owns"
        return f"{told}, each rank has a term" if added else told
    if any(reduction(p) is not None for p in choice.gives):
        return "terms stay terms"
    return ""


PASS = Pass("gflow-propagate-shardings", run, doc=__doc__ or "")

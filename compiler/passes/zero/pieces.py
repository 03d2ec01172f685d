"""Computing on a rank's shard ("piece") of replicated values.

A piece is the result of `gflow.shard`: the flattened value, padded with zeros to a multiple of the ranks, and of that
the part with the rank's number. Elementwise ops are computed on pieces. A reduction over all dimensions is computed on
pieces and combined over the ranks. All other ops read the gathered value. So every program stays correct, and an
optimizer that is elementwise, possibly with norms, computes each element on one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from gflow.compiler.ir.collectives import (
    BUCKETS,
    GRADIENT,
    attributes_read,
    build_collective,
    data_operands,
    set_types,
)
from gflow.compiler.ir.ssa import attributes_of, updates
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.distribution.mesh import SHARDING, WHOLE, mesh_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import COLLECTIVE, SHARD, shard_size
from gflow.dialects.types import NO_KERNELS, TensorType

#: by kind of a reduction: the collective's reduction, and its element type (None: that of the operand)
_COMBINED: dict[str, tuple[str, str | None]] = {
    "sum": ("sum", None), "prod": ("product", None), "max": ("max", None), "min": ("min", None),
    "any": ("max", "ui8"), "all": ("min", "ui8"),
}  # fmt: skip


@dataclass
class Pieces:
    """The pieces of one function's values.

    Attributes:
        group: the attributes of the ranks' group in collectives (`axes` or `group`, and `ranks`).
        of: the piece of each value that has one.
        gathered: the gathered value of each value with a piece, where it was needed.
        names: the parameter that a value belongs to.
        buckets: the greatest size of collectives, by parameter, where it is stated.
    """

    function: func.FuncOp
    group: dict[str, Any]
    of: dict[ir.Value, ir.Value] = field(default_factory=dict)
    gathered: dict[ir.Value, ir.Value] = field(default_factory=dict)
    names: dict[ir.Value, str] = field(default_factory=dict)
    buckets: dict[str, ir.Attribute] = field(default_factory=dict)
    _listed: dict[str, list[Any]] = field(default_factory=dict)

    def tell(self, listed: str, number: int, told: dict[str, ir.Attribute]) -> None:
        """Record attributes of an argument ("arg_attrs") or result ("res_attrs") that becomes a piece, for `write`."""
        if (
            listed not in self._listed
        ):  # all at once, since each attribute is a list over all arguments
            self._listed[listed] = list(ir.ArrayAttr(self.function.attributes[listed]))
        known = ir.DictAttr(self._listed[listed][number])
        before = {e.name: e.attr for e in known if e.name != "gflow.strides"}
        self._listed[listed][number] = ir.DictAttr.get({**before, **told})

    def write(self) -> None:
        """Set the function's type, and the recorded attributes of arguments and results."""
        for listed, given in self._listed.items():
            self.function.attributes[listed] = ir.ArrayAttr.get(given)
        self._listed.clear()
        set_types(self.function)

    @property
    def ranks(self) -> int:
        """The number of ranks of the group."""
        return int(self.group["ranks"])

    def scatter(self, op: ir.Operation) -> None:
        """Replace the all_reduce `op`, whose result has no users on pieces yet, by a reduce_scatter."""
        (x,) = data_operands(op)
        name = ir.StringAttr(op.attributes[GRADIENT]).value
        with op.location, ir.InsertionPoint(op):
            piece = build_collective(
                self.padded(x),
                "reduce_scatter",
                reduction=attributes_read(op)["reduction"],
                **self.group,
            )
        if BUCKETS in op.attributes:
            self.buckets[name] = op.attributes[BUCKETS]
        self._mark(piece, name)
        self.of[op.results[0]] = piece
        self.names[op.results[0]] = name

    def _mark(self, made: ir.Value, name: str) -> None:
        attributes = made.owner.operation.attributes
        attributes[GRADIENT] = ir.StringAttr.get(name)
        if name in self.buckets:
            attributes[BUCKETS] = self.buckets[name]

    def padded(self, x: ir.Value) -> ir.Value:
        """A value flattened to one dimension, and padded to a multiple of the ranks."""
        ty = builder.type_of(x)
        flat = builder.reshape(x, (ty.numel,))
        missing = shard_size(ty, self.ranks) * self.ranks - ty.numel
        if not missing:
            return flat
        zero = builder.splat(0, TensorType((), ty.dtype))
        return builder.build("pad", [flat, zero], {"low": (0,), "high": (missing,)})

    def whole(self, value: ir.Value, name: str) -> ir.Value:
        """The value whose piece is known, gathered at the insertion point."""
        return self.gather(self.of[value], builder.type_of(value), name)

    def gather(self, piece: ir.Value, ty: TensorType, name: str) -> ir.Value:
        """Gather a piece to a value of type `ty` at the insertion point. name: the parameter."""
        made = build_collective(piece, "all_gather", **self.group)
        self._mark(made, name)
        if builder.type_of(made).numel != ty.numel:
            cut = {"starts": (0,), "limits": (ty.numel,), "strides": (1,)}
            made = builder.build("slice", [made], cut)
        return builder.reshape(made, ty.shape)

    # -- the sweep over the program

    def sweep(self, among: Callable[[ir.Operation], bool] = lambda op: True) -> None:
        """Compute on pieces where possible, and gather values that other ops read. among: selects the ops to change."""
        for op in self._readers():
            if op.name == "func.return" or not among(op):
                continue
            with op.location, ir.InsertionPoint(op):
                if not self._on_pieces(op):
                    self._read_whole(op)

    def _readers(self) -> Iterator[ir.Operation]:
        """The ops that read a value with a piece, in order; those of values that get one meanwhile, too."""
        operations = [v.operation for v in self.function.regions[0].blocks[0].operations]
        made = [v.owner.operation for v in self.of if not isinstance(v.owner, ir.Block)]
        if len(made) == len(
            self.of
        ):  # no argument has a piece: nothing before the first of these ops reads one
            first = reduce(lambda a, b: a if a.is_before_in_block(b) else b, made)
            operations = operations[operations.index(first) :]
        for op in operations:
            if any(v in self.of for v in op.operands):
                yield op

    def _on_pieces(self, op: ir.Operation) -> bool:
        name = op.name.removeprefix("gflow.")
        known = [v for v in op.operands if v in self.of]
        if name == "reduce":
            return self._reduced(op)
        if name == "reshape":
            self._same(op.results[0], known[0], self.of[known[0]])
            return True
        if name == SHARD and group_read(op) == self.group:
            op.results[0].replace_all_uses_with(self.of[known[0]])
            return True
        if name not in OPS or OPS[name].category != "elementwise":
            return False
        operands = [self.piece(v) for v in op.operands]
        self._same(op.results[0], known[0], _clone(op, operands))
        return True

    def _same(self, value: ir.Value, like: ir.Value, piece: ir.Value) -> None:
        self.of[value] = piece
        self.names[value] = self.names.get(like, "")

    def piece(self, value: ir.Value) -> ir.Value:
        """The piece of a value at the insertion point, computed from pieces as far up as possible."""
        if value in self.of:
            return self.of[value]
        ty = builder.type_of(value)
        small = TensorType((shard_size(ty, self.ranks),), ty.dtype)
        owner = value.owner
        op = None if isinstance(owner, ir.Block) else owner.operation
        name = "" if op is None else op.name.removeprefix("gflow.")
        if op is not None and name == "constant" and is_splat(op.attributes["value"]):
            made = ir.DenseElementsAttr.get_splat(
                small.mlir(), ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
            )
            return builder.build("constant", [], {"value": made})
        if op is not None and name == "broadcast" and builder.type_of(op.operands[0]).numel == 1:
            scalar = builder.reshape(op.operands[0], ())
            return builder.build("broadcast", [scalar], {"shape": small.shape, "dims": ()})
        if op is not None and name == "reshape":
            return self.piece(op.operands[0])
        if op is not None and name in OPS and OPS[name].category == "elementwise":
            return _clone(op, [self.piece(v) for v in op.operands])
        return builder.build(SHARD, [value], self.group)

    def _reduced(self, op: ir.Operation) -> bool:
        """Compute a reduction over all dimensions on pieces, and combine it over the ranks; returns whether it can."""
        attrs = read(OPS["reduce"], op.attributes)
        (x,) = op.operands
        ty = builder.type_of(x)
        if len(attrs["dims"]) != ty.rank or attrs["kind"] not in _COMBINED:
            return False
        piece = self.of[x]
        if builder.type_of(piece).numel * self.ranks != ty.numel:
            piece = self._masked(piece, ty, attrs["kind"])
        words = {"kind": attrs["kind"], "dims": (0,), "dtype": attrs["dtype"]}
        part = builder.build("reduce", [piece], words)
        reduction, dtype = _COMBINED[attrs["kind"]]
        own = builder.type_of(part).dtype
        part = builder.convert(part, dtype or own)
        total = build_collective(part, "all_reduce", reduction=reduction, **self.group)
        op.results[0].replace_all_uses_with(builder.convert(total, own))
        return True

    def _masked(self, piece: ir.Value, ty: TensorType, kind: str) -> ir.Value:
        """A piece whose padding is replaced by the identity of the reduction `kind`."""
        small = builder.type_of(piece)
        there = builder.build(
            SHARD, [builder.splat(True, TensorType((ty.numel,), "i1"))], self.group
        )
        return builder.build(
            "select", [there, piece, builder.splat(_neutral(kind, ty.dtype), small)]
        )

    def _read_whole(self, op: ir.Operation) -> None:
        for n, v in enumerate(op.operands):
            if v in self.of:
                if v not in self.gathered:
                    self.gathered[v] = self.whole(v, self.names.get(v, ""))
                op.operands[n] = self.gathered[v]


def group_read(op: ir.Operation) -> dict[str, Any]:
    """The attributes `axes` or `group`, and `ranks`, of a collective or a shard."""
    attrs = read(OPS[op.name.removeprefix("gflow.")], op.attributes)
    return {k: attrs[k] for k in ("axes", "group", "ranks") if attrs[k] is not None}


def divides(ty: TensorType, least: int) -> bool:
    """Whether a tensor is sharded: it has at least `least` elements, of a type with kernels (for padding)."""
    return ty.numel >= least and ty.dtype not in NO_KERNELS


def gradients(function: func.FuncOp, least: int) -> list[ir.Operation]:
    """The all_reduces of gradients that may be sharded."""
    found = []
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == f"gflow.{COLLECTIVE}" and GRADIENT in op.attributes:
            kind = ir.StringAttr(op.attributes["kind"]).value
            if kind == "all_reduce" and divides(builder.type_of(op.results[0]), least):
                found.append(op)
    return found


def drop_unread(function: func.FuncOp) -> None:
    """Erase ops without users; of collectives, only reductions of gradients."""
    for op in reversed([v.operation for v in function.regions[0].blocks[0].operations]):
        name = op.name.removeprefix("gflow.")
        if (
            name not in OPS
            or not OPS[name].pure
            or any(any(True for _ in r.uses) for r in op.results)
        ):
            continue
        if name != COLLECTIVE or GRADIENT in op.attributes:
            op.erase()


def keep_pieces(function: func.FuncOp, pieces: Pieces, roles: Callable[[str], bool]) -> None:
    """Turn arguments into pieces that are read only as pieces and updated with pieces; other updates are gathered.

    roles: says which roles of arguments may become pieces.
    """
    block = function.regions[0].blocks[0]
    terminator = block.operations[-1].operation
    targets = updates(function)
    given = (
        list(ir.ArrayAttr(function.attributes["arg_attrs"]))
        if "arg_attrs" in function.attributes
        else []
    )
    wholes = {
        n: (builder.type_of(v), pieces.names.get(v, ""))
        for n, v in enumerate(terminator.operands)
        if v in pieces.of
    }
    for n in wholes:  # so that the computation of whole values has no users any more
        terminator.operands[n] = pieces.of[terminator.operands[n]]
    drop_unread(function)
    with terminator.location, ir.InsertionPoint(terminator):
        for n, (ty, name) in wholes.items():
            alias = targets[n]
            role = ""
            if alias is not None and alias < len(given) and "gflow.role" in given[alias]:
                role = ir.StringAttr(given[alias]["gflow.role"]).value
            if (
                alias is None
                or not roles(role)
                or not _read_in_pieces(block.arguments[alias], pieces)
            ):
                terminator.operands[n] = pieces.gather(terminator.operands[n], ty, name)
            else:
                become_piece(function, pieces, alias, n)
    pieces.write()


def become_piece(
    function: func.FuncOp, pieces: Pieces, number: int, result: int | None
) -> list[ir.Operation]:
    """Turn argument `number`, which result `result` updates (None: none does), into a piece.

    `Pieces.write` must be called after the last argument.

    Returns:
        The ops that read the whole argument, whose operand the caller must replace.
    """
    argument = function.regions[0].blocks[0].arguments[number]
    ty = builder.type_of(argument)
    readers = []
    for op in [use.owner.operation for use in argument.uses]:
        if op.name == f"gflow.{SHARD}" and group_read(op) == pieces.group:
            op.results[0].replace_all_uses_with(argument)
            op.erase()
        else:
            readers.append(op)
    argument.set_type(TensorType((shard_size(ty, pieces.ranks),), ty.dtype).mlir())
    told = {WHOLE: ir.DenseI64ArrayAttr.get(list(ty.shape)), **_told(function, pieces)}
    for listed, n in (("arg_attrs", number), ("res_attrs", result)):
        if n is not None:
            pieces.tell(listed, n, told)
    return readers


def _told(function: func.FuncOp, pieces: Pieces) -> dict[str, ir.Attribute]:
    """`gflow.sharding` of a piece, where the module has a mesh."""
    mesh = mesh_of(function)
    if mesh is None:
        return {}
    axes = pieces.group.get("axes") or ()
    placements = ["S(0)" if axis in axes else "B" for axis in mesh.axes]
    return {SHARDING: ir.ArrayAttr.get([ir.StringAttr.get(p) for p in placements])}


def _read_in_pieces(argument: ir.Value, pieces: Pieces) -> bool:
    uses = [use.owner.operation for use in argument.uses]
    return all(op.name == f"gflow.{SHARD}" and group_read(op) == pieces.group for op in uses)


def _neutral(kind: str, dtype: str) -> Any:
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    big = (
        float("inf") if dtype in ("f64", "f32", "f16", "bf16") else np.iinfo(f"int{dtype[1:]}").max
    )
    low = -big if isinstance(big, float) else np.iinfo(f"int{dtype[1:]}").min
    return low if kind == "max" else big


def _clone(op: ir.Operation, operands: list[ir.Value]) -> ir.Value:
    """Copy an elementwise op to operands of another shape."""
    name = op.name.removeprefix("gflow.")
    attrs = {k: v for k, v in read(OPS[name], op.attributes).items() if v is not None}
    extra = {k: v for k, v in attributes_of(op).items() if k.startswith("gflow.")}
    made = builder.build_op(name, operands, attrs)
    for key, attribute in extra.items():
        made.attributes[key] = attribute
    return made.results[0]

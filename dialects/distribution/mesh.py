"""Meshes and shardings as attributes, and the verifier of a program's collectives.

`gflow.mesh` on the module names the axes along which ranks are arranged, row-major (as `DeviceMesh`):

    module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 4>}}

`gflow.sharding` on an argument or a result has the placement of the value along each axis: with `S(d)`, a rank has its
shard of dimension d; with `B`, the whole value; with `P(sum)`, an addend of it (likewise `P(max)`, `P(avg)`, …).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from ..attributes import from_mlir
from ..marks import modules_and_functions
from ..mlir import ir
from ..opdef import Attr, VerifyError
from ..ops.distribution import ORDERED, REDUCTIONS, SHARD, START, WAIT
from ..records import record

MESH, SHARDING = "gflow.mesh", "gflow.sharding"

#: on an argument or a result that is this rank's shard (`gflow.shard`) of a tensor: that tensor's shape
WHOLE = "gflow.whole"
#: on an argument of which each rank along these mesh axes has a copy
COPIES = "gflow.copies"
#: on an argument of which callers pass their shard: the mesh axes along which it is sharded
PARTS = "gflow.parts"

_PLACEMENT = re.compile(r"B|S\(\d{1,3}\)|P\((\w+)\)")


@record
class Mesh:
    """axes: names. sizes: ranks along each; ranks are numbered row-major."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    def size(self, axes: tuple[str, ...]) -> int:
        """The number of ranks along these axes.

        Raises:
            VerifyError: an axis does not exist, or occurs twice.
        """
        for axis in axes:
            if axis not in self.axes:
                raise VerifyError(f"no mesh axis '{axis}'; there are {', '.join(self.axes)}")
        if len(set(axes)) != len(axes):
            raise VerifyError(f"a mesh axis stands twice in {', '.join(axes)}")
        return prod(self.sizes[self.axes.index(axis)] for axis in axes)

    def mlir(self) -> ir.Attribute:
        """The attribute `gflow.mesh`, in the current context."""
        axes = ir.ArrayAttr.get([ir.StringAttr.get(a) for a in self.axes])
        return ir.DictAttr.get({"axes": axes, "sizes": ir.DenseI64ArrayAttr.get(list(self.sizes))})


def read_mesh(attribute: ir.Attribute) -> Mesh:
    """The mesh that an attribute `gflow.mesh` describes.

    Raises:
        VerifyError: it is malformed.
    """
    if not isinstance(attribute, ir.DictAttr) or {e.name for e in attribute} != {"axes", "sizes"}:
        raise VerifyError(
            f"'{MESH}' must be {{axes = […], sizes = array<i64: …>}}, found {attribute}"
        )
    try:
        axes = from_mlir(Attr("str[]"), attribute["axes"])
        sizes = from_mlir(Attr("i64[]"), attribute["sizes"])
    except (VerifyError, TypeError) as error:
        raise VerifyError(f"'{MESH}': axes or sizes {error}") from None
    if not axes or len(axes) != len(sizes) or len(set(axes)) != len(axes) or min(sizes) < 1:
        raise VerifyError(
            f"'{MESH}' needs different axes, and a size of 1 or more for each, found {attribute}"
        )
    return Mesh(tuple(axes), tuple(sizes))


def mesh_of(function: Any) -> Mesh | None:
    """The mesh of the module around a function; None if it has none.

    Raises:
        VerifyError: it is malformed.
    """
    try:
        module = function.operation.parent
    except ValueError:  # it stands alone
        return None
    if module is None or MESH not in module.attributes:
        return None
    return read_mesh(module.attributes[MESH])


def problems(root: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    """The errors in meshes, shardings and collectives of a module or function, each with its op."""
    unreadable: list[ir.Operation] = []
    for op in modules_and_functions(root):
        if op.name == "func.func":
            if op == root or op.parent not in unreadable:
                yield from _of_function(op)
        elif MESH in op.attributes:
            try:
                read_mesh(op.attributes[MESH])
            except VerifyError as error:
                yield str(error), op
                unreadable.append(op)


def _of_function(function: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    try:
        mesh = mesh_of(function)
    except VerifyError as error:
        yield str(error), function
        return
    for kind, listed in (("argument", "arg_attrs"), ("result", "res_attrs")):
        if listed in function.attributes:
            for n, given in enumerate(ir.ArrayAttr(function.attributes[listed])):
                for what in _of_value(ir.DictAttr(given), mesh):
                    yield f"{kind} {n}: {what}", function
    for region in function.regions:
        for block in region.blocks:
            yield from _of_block(block, mesh)


def _of_value(attrs: Any, mesh: Mesh | None) -> Iterator[str]:
    """Check that a sharding has one valid placement for each axis."""
    if WHOLE in attrs and not isinstance(attrs[WHOLE], ir.DenseI64ArrayAttr):
        yield f"'{WHOLE}' must be array<i64: ...>, found {attrs[WHOLE]}"
    for name in (COPIES, PARTS):
        if name not in attrs:
            continue
        try:
            unknown = set(from_mlir(Attr("str[]"), attrs[name])) - set(mesh.axes if mesh else ())
        except (VerifyError, TypeError):
            yield f"'{name}' must be an array of strings, found {attrs[name]}"
            continue
        if unknown:
            yield f"'{name}' names {', '.join(sorted(unknown))}, which are no axes of the module's mesh"
    if SHARDING not in attrs:
        return
    try:
        placements = from_mlir(Attr("str[]"), attrs[SHARDING])
    except (VerifyError, TypeError):
        yield f"'{SHARDING}' must be an array of strings, found {attrs[SHARDING]}"
        return
    if mesh is None:
        yield f"'{SHARDING}' without '{MESH}' on the module"
    elif len(placements) != len(mesh.axes):
        yield f"'{SHARDING}' needs a placement for each of {', '.join(mesh.axes)}, found {attrs[SHARDING]}"
    for placement in placements:
        match = _PLACEMENT.fullmatch(placement)
        if match is None or (match[1] is not None and match[1] not in REDUCTIONS):
            yield f"'{SHARDING}': a placement is S(d), B or P(sum), found '{placement}'"


def _of_block(block: ir.Block, mesh: Mesh | None) -> Iterator[tuple[str, ir.Operation]]:
    """Check the collectives of a block.

    Their axes exist and have as many ranks as stated. Sequence numbers increase, and a token leads from each collective
    to the next. Each start has one wait, and no other op uses its result."""
    sequence, token = -1, None
    for view in block.operations:
        op = view.operation
        name = op.name.removeprefix("gflow.")
        if name in ORDERED or name == SHARD:
            what = _axes(op, mesh)
            if what:
                yield what, op
        if name in ORDERED:
            number = ir.IntegerAttr(op.attributes["sequence"]).value
            if number <= sequence:
                yield f"has the number {number} in the order of collectives, after {sequence}", op
            sequence = number
            given = op.operands[len(op.operands) - 1] if _takes_token(op) else None
            if token is not None and (given is None or given != token):
                yield "does not take the token of the collective before it", op
            token = op.results[len(op.results) - 1]
        if name == START:
            yield from _of_start(op)
        elif name == WAIT and not _is_started(op.operands[0]):
            yield f"waits for what is no result of gflow.{START}", op


def _takes_token(op: ir.Operation) -> bool:
    return len(op.operands) > (ir.StringAttr(op.attributes["kind"]).value != "recv")


def _is_started(value: ir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name == f"gflow.{START}"


def _axes(op: ir.Operation, mesh: Mesh | None) -> str:
    if "axes" not in op.attributes:
        return ""
    if mesh is None:
        return f"names mesh axes, and the module has no '{MESH}'"
    try:
        size = mesh.size(from_mlir(Attr("str[]"), op.attributes["axes"]))
    except VerifyError as error:
        return str(error)
    ranks = ir.IntegerAttr(op.attributes["ranks"]).value
    return "" if size == ranks else f"has {ranks} ranks, and its mesh axes have {size}"


def _of_start(op: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    users = [use.owner.operation for use in op.results[0].uses]
    if len(users) != 1 or users[0].name != f"gflow.{WAIT}":
        yield f"needs one gflow.{WAIT}, and no other reader of what it gives", op
        return
    operands = list(op.operands)[: len(op.operands) - _takes_token(op)]
    if list(users[0].operands)[1:] != operands:
        yield "its wait does not read its operand, which so is not kept until then", op

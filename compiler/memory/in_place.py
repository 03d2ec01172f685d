"""When a kernel may write a result over one of its own operands."""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.attributes import read as read_attributes
from gflow.dialects.mlir import ir
from gflow.dialects.ops import CONTRACTIONS, OPS

#: ops of a kernel that use a value only at the position where they compute their own
_KEEPS_POSITION = frozenset(
    {"reshape", *(name for name, d in OPS.items() if d.category == "elementwise")}
)


#: ops that may write a result over an operand
OVERWRITES = frozenset({"fused", "index_copy"})


def reads_where_it_writes(fused: ir.Operation, operand: int, result: int) -> bool:
    """Whether a kernel is done with `operand`, position by position, when it writes `result`.

    That holds if both have as many elements of one width, and all that is computed from the
    operand stays at its position: a broadcast of it would be read for positions that are written
    later. (Kernels compute all that they store at a position before they store any of it.)

    Where a kernel reduces, it walks its index space in passes: one for each level of reductions,
    in which it also stores what needs no deeper one, and a last one. Over an operand as large as
    the index space, only what is stored in the last pass that reads the operand, or later, may be
    written. Values of the reduced shape are read before any of them is written; one may also be
    spread over what is reduced (a scale that the kernel updates), if the result needs reductions
    as deep as those that read it. A contraction is written before the rest of its kernel reads
    anything.

    A `gflow.index_copy` writes over what it copies into, and reads nothing of it.
    """
    if fused.name == "gflow.index_copy":
        return operand == 0
    return FusedKernel(fused).reads_where_it_writes(operand, result)


class FusedKernel:
    """The region of a `gflow.fused` op, to be asked for several of its operands and results."""

    def __init__(self, fused: ir.Operation) -> None:
        block = fused.regions[0].blocks[0]
        *body, terminator = [o.operation for o in block.operations]
        self._arguments, self._yielded = list(block.arguments), list(terminator.operands)
        self._passes = _Passes(body)

    def reads_where_it_writes(self, operand: int, result: int) -> bool:
        """As the function of this name."""
        argument, yielded, passes = self._arguments[operand], self._yielded[result], self._passes
        read, written = builder.type_of(argument), builder.type_of(yielded)
        if read.numel != written.numel or read.itemsize != written.itemsize:
            return False
        if not isinstance(yielded.owner, ir.Block) and _gathers(yielded.owner.operation):
            return False
        last_read, spread = _last_read(argument, passes)
        if last_read is None:
            return False
        if spread:
            return last_read <= passes.depth(yielded)
        return read.numel != passes.numel or last_read <= passes.depth(yielded) + 1


def _gathers(op: ir.Operation) -> bool:
    """Whether what an op gives at a position comes of many positions, and isn't a reduction of the kernel's."""
    name = op.name.removeprefix("gflow.")
    if name == "reshape" and not isinstance(op.operands[0].owner, ir.Block):
        return _gathers(op.operands[0].owner.operation)
    return name == "partial_sums" or name in CONTRACTIONS


class _Passes:
    """How many reductions lie below each value of a kernel; `numel` of what they reduce (-1: none).

    kept: the dimensions that they keep.
    """

    def __init__(self, body: list[ir.Operation]) -> None:
        self.numel = -1
        self.kept: list[int] = []
        self._shape: tuple[int, ...] = ()
        self._depth: dict[ir.Value, int] = {}
        for op in body:
            if op.name == "gflow.reduce" and self.numel < 0:
                ty = builder.type_of(op.operands[0])
                dims = read_attributes(OPS["reduce"], op.attributes)["dims"]
                self.numel, self._shape = ty.numel, ty.shape
                self.kept = [d for d, n in enumerate(ty.shape) if n != 1 and d not in dims]
        if self.numel < 0:
            return
        depths = self._depth
        for op in body:
            below = 0
            if depths:  # there is a reduction above
                for v in op.operands:
                    below = max(below, depths.get(v, 0))
            below += op.name == "gflow.reduce"
            if below:
                for r in op.results:
                    depths[r] = below

    def depth(self, value: ir.Value) -> int:
        return self._depth.get(value, 0)

    def spreads(self, op: ir.Operation) -> bool:
        """Whether a broadcast repeats a value of the reduced shape over what is reduced."""
        attrs = read_attributes(OPS["broadcast"], op.attributes)
        inner = builder.type_of(op.operands[0]).shape
        along = [d for d, n in zip(attrs["dims"], inner) if n != 1]
        return self.numel > 0 and tuple(attrs["shape"]) == self._shape and along == self.kept


def _last_read(argument: ir.Value, passes: _Passes) -> tuple[int | None, bool]:
    """The last pass that reads an argument of a kernel; None if it is read for other positions.

    A reduction ends a chain: what follows it reads the reduction, not the argument. Also whether it
    is spread over what is reduced.
    """
    last, spread = 1, False
    stack, seen = [argument], {argument}
    while stack:
        value = stack.pop()
        for use in value.uses:
            op = use.owner.operation
            match op.name.removeprefix("gflow."):
                case "yield":
                    whole = builder.type_of(value).numel == passes.numel
                    last = max(last, passes.depth(value) + whole)
                case "reduce":
                    last = max(last, passes.depth(op.results[0]))
                case "partial_sums":
                    last = max(last, passes.depth(value) + 1)
                case "broadcast" if passes.spreads(op):
                    spread = True
                    last = max(last, passes.depth(value) + 1)
                    if op.results[0] not in seen:
                        seen.add(op.results[0])
                        stack.append(op.results[0])
                case name if name not in _KEEPS_POSITION:
                    return None, False
                case _:
                    for r in op.results:
                        if r not in seen:
                            seen.add(r)
                            stack.append(r)
    return last, spread

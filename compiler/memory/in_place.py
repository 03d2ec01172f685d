"""When a kernel may write a result over one of its operands."""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.attributes import read as read_attributes
from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import ir
from gflow.dialects.ops import CONTRACTIONS, OPS

#: ops of a kernel that read an operand only at the position that they compute
_KEEPS_POSITION = frozenset(
    {"reshape", *(name for name, d in OPS.items() if d.category == "elementwise")}
)


#: ops that may write a result over an operand, whatever runs them
OVERWRITES = frozenset({"fused", "index_copy", "put"})

#: those that may take over the operand's memory in the arena where it is not read again
TAKE_OVER = frozenset({"fused", "put"})


def adds_in_place(o: ir.Operation) -> bool:
    """Whether an op is a `gflow.index_add` whose kernel may write its result over its first operand."""
    if o.name != "gflow.index_add" or KERNEL not in o.attributes:
        return False
    return bool(ir.StringAttr(ir.DictAttr(o.attributes[KERNEL])["kind"]).value == "kernel")


def reads_where_it_writes(fused: ir.Operation, operand: int, result: int) -> bool:
    """Whether `result` may overwrite `operand`: at each position, the kernel reads the operand before it writes.

    That holds if both have the same number of elements of the same width, and if each value that is computed from the
    operand stays at its position. A broadcast of the operand would be read for positions that are written later.
    (Kernels compute all values that they store at a position before they store any of them.)

    A kernel with reductions makes several passes over its index space: one for each level of reductions, which also
    stores results that need no deeper level, and a last one. If the operand covers the index space, the result must be
    stored in the last pass that reads the operand, or later. Operands of the reduced shape are read before any result
    of that shape is written. Such an operand may also be broadcast over the reduced dimensions (a scale that the kernel
    updates) if the result needs reductions as deep as those that read it. A contraction is written before its epilogue
    reads anything.

    A `gflow.index_copy` or `gflow.put` may overwrite the tensor that it copies into, and a kernel of `gflow.index_add`
    the one that it adds to.

    Args:
        fused: the op.
        operand, result: numbers of an operand and a result.
    """
    if fused.name in ("gflow.index_copy", "gflow.put") or adds_in_place(fused):
        return operand == 0
    return FusedKernel(fused).reads_where_it_writes(operand, result)


class FusedKernel:
    """The region of a `gflow.fused` op, for queries about several of its operands and results."""

    def __init__(self, fused: ir.Operation) -> None:
        block = fused.regions[0].blocks[0]
        *body, terminator = [o.operation for o in block.operations]
        self._arguments, self._yielded = list(block.arguments), list(terminator.operands)
        self._passes = _Passes(body)

    def reads_where_it_writes(self, operand: int, result: int) -> bool:
        """As the function of the same name."""
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
    """Whether an element of the op's result depends on other positions of its operand; not for kernel reductions."""
    name = op.name.removeprefix("gflow.")
    if name == "reshape" and not isinstance(op.operands[0].owner, ir.Block):
        return _gathers(op.operands[0].owner.operation)
    return name in ("partial_sums", "softmax_runs") or name in CONTRACTIONS


class _Passes:
    """The number of reductions on which each value of a kernel depends, in sequence.

    numel: the elements of the reductions' operand; -1: there are no reductions. kept: the dimensions that they keep.
    """

    def __init__(self, body: list[ir.Operation]) -> None:
        self.numel = -1
        self.kept: list[int] = []
        self._shape: tuple[int, ...] = ()
        self._depth: dict[ir.Value, int] = {}
        for op in body:
            if op.name == "gflow.reduce":
                ty = builder.type_of(op.operands[0])
                dims = read_attributes(OPS["reduce"], op.attributes)["dims"]
                self.numel, self._shape = ty.numel, ty.shape
                self.kept = [d for d, n in enumerate(ty.shape) if n != 1 and d not in dims]
                break
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
        """Whether a broadcast repeats a value of the reduced shape along reduced dimensions."""
        attrs = read_attributes(OPS["broadcast"], op.attributes)
        inner = builder.type_of(op.operands[0]).shape
        along = [d for d, n in zip(attrs["dims"], inner) if n != 1]
        return self.numel > 0 and tuple(attrs["shape"]) == self._shape and along == self.kept


def _last_read(argument: ir.Value, passes: _Passes) -> tuple[int | None, bool]:
    """The last pass that reads an argument of a kernel, and whether it is broadcast along reduced dimensions.

    The pass is None if the argument is read for other positions. Values that depend on it only through a reduction do
    not read it.
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

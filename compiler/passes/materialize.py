"""Insert the copies that memory needs, as kernels of their own.

After this pass every reshape is a view, contractions read operands that a GEMM can take, and every returned value is
written by an op of its own: into the result's buffer, or into the storage of the argument that it updates.

    %1 = "gflow.reshape"(%0)   (%0 transposed)      %c = "gflow.fused"(%0) ({ ^bb0(%x): "gflow.yield"(%x) })
                                               →    %1 = "gflow.reshape"(%c)

An update is written in place if nothing reads the old value later, and if the kernel that makes it reads it only
where it writes; else it goes to a buffer and is copied at the end.
"""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import OpDef
from gflow.dialects.ops import OPS
from gflow.dialects.types import row_major_strides

from ..ssa import Body, Op, read_body
from ..views import Layout, is_view, layouts
from .base import NoOptions, Pass

_POINTWISE = frozenset(name for name, d in OPS.items() if d.category == "elementwise")


#: operands that must be dense and row-major: activations (weights may lie either way), indices
_DENSE = {
    "convolution": (0,),
    "convolution_input_grad": (0,),
    "convolution_weight_grad": (0, 1),
    "take": (1,),
    "index_add": (1, 2),
}


def copy_of(value: ir.Value) -> ir.Value:
    """A dense row-major copy, as a fused op, at the insertion point."""
    ty = builder.type_of(value)
    fused = builder.build_op("fused", [value], {"kind": "pointwise"}, [ty])
    block = fused.regions[0].blocks.append(value.type)
    with ir.InsertionPoint(block):
        builder.build_op("yield", [block.arguments[0]], {}, [])
    return fused.results[0]


def gemm_ready(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether BLAS can read the last two dimensions as a matrix or its transpose."""
    (rows, cols), (row, col) = shape[-2:], strides[-2:]
    if rows * cols == 0 or min(strides, default=1) < 0:
        return rows * cols == 0
    dense = (cols == 1 or col == 1) and (rows == 1 or row >= cols)
    transposed = (rows == 1 or row == 1) and (cols == 1 or col >= rows)
    return dense or transposed


def reads_where_it_writes(fused: ir.Operation, operand: int, result: int) -> bool:
    """Whether a kernel reads `operand` only at the position at which it writes `result` at that moment."""
    block = fused.regions[0].blocks[0]
    argument = block.arguments[operand]
    written = list(list(block.operations)[-1].operation.operands)[result]
    if argument.type != written.type:
        return False
    reduces = [o.operation for o in block.operations if o.operation.name == "gflow.reduce"]
    if reduces:
        # rows are walked more than once: only values of the reduced shape are read before all is written
        spans = builder.type_of(reduces[0].operands[0]).numel
        if builder.type_of(argument).numel == spans:
            return False
    for use in argument.uses:
        name = use.owner.operation.name.removeprefix("gflow.")
        if name not in _POINTWISE and name != "yield":
            return False
        if (
            name in _POINTWISE
            and use.owner.operation.results
            and builder.type_of(use.owner.operation.results[0]).shape
            != builder.type_of(argument).shape
        ):
            return False
    return True


def aliases(function: func.FuncOp, body: Body) -> list[int | None]:
    """For each returned value the number of the argument that it updates."""
    if "res_attrs" not in function.attributes:
        return [None] * len(body.returned)
    out: list[int | None] = []
    for entry in ir.ArrayAttr(function.attributes["res_attrs"]):
        attrs = ir.DictAttr(entry)
        out.append(ir.IntegerAttr(attrs["gflow.alias"]).value if "gflow.alias" in attrs else None)
    return out


def _in_place(body: Body, at: list[Layout], value: int, argument: int, readers: list[int]) -> bool:
    """Whether the op that makes `value` may write it into the argument's storage. `readers`: ops reading the argument."""
    p = body.producer[value]
    for r in readers:
        if r > p:
            return False
        if r == p:
            o = body.ops[p]
            if o.name != "fused":
                return False
            result = o.results.index(value)
            for n, operand in enumerate(o.operands):
                if at[operand].base != argument:
                    continue
                if operand != argument or not reads_where_it_writes(o.op, n, result):
                    return False
    return True


def _fix_operands(body: Body, at: list[Layout]) -> None:
    for o in body.ops:
        if o.name in ("reshape",) and not is_view(o, at):
            with o.op.location, ir.InsertionPoint(o.op):
                o.op.operands[0] = copy_of(o.op.operands[0])
        elif o.name in _DENSE:
            for n in _DENSE[o.name]:
                v = o.operands[n]
                if at[v].strides != row_major_strides(body.types[v].shape):
                    with o.op.location, ir.InsertionPoint(o.op):
                        o.op.operands[n] = copy_of(o.op.operands[n])
        elif o.name == "matmul":
            for n, v in enumerate(o.operands):
                if not gemm_ready(body.types[v].shape, at[v].strides):
                    with o.op.location, ir.InsertionPoint(o.op):
                        o.op.operands[n] = copy_of(o.op.operands[n])


def _makes(o: Op, at: list[Layout]) -> bool:
    definition: OpDef | None = OPS.get(o.name)
    return definition is not None and not is_view(o, at) and o.name != "constant"


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    _fix_operands(body, layouts(function, body))
    body = read_body(function)
    at = layouts(function, body)
    target = aliases(function, body)
    readers: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            readers.setdefault(at[v].base, []).append(o.index)
    # the old value of an argument may also be returned: then it is read at the very end
    taken: set[int] = set()
    late = {at[v].base for v in body.returned}
    updated = {body.arguments[alias] for alias in target if alias is not None}
    copies: list[tuple[int, ir.Value]] = []
    with ir.InsertionPoint(body.terminator):
        for n, v in enumerate(body.returned):
            p = body.producer[v]
            own = p >= 0 and _makes(body.ops[p], at) and at[v].base == v and v not in taken
            alias = target[n]
            if alias is not None and v == body.arguments[alias]:
                continue  # it is where it belongs
            if own and alias is not None:
                argument = body.arguments[alias]
                own = argument not in late and _in_place(
                    body, at, v, argument, readers.get(argument, [])
                )
            if own:
                taken.add(v)
                continue
            location = body.ops[p].op.location if p >= 0 else ir.Location.unknown()
            with location:
                # an old value is saved before any copy overwrites it: plain results first, then updates;
                # an update that is an old value itself (two buffers swapped) goes by way of a buffer
                value = body.values[v]
                if alias is not None and at[v].base in updated:
                    value = copy_of(value)
                copies.append((n, value))
        for wanted in (False, True):
            for n, value in copies:
                if (target[n] is not None) is wanted:
                    with (
                        value.owner.location
                        if not isinstance(value.owner, ir.Block)
                        else ir.Location.unknown()
                    ):
                        body.terminator.operands[n] = copy_of(value)


PASS = Pass("gflow-materialize", run, NoOptions, __doc__ or "")

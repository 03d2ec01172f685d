"""Insert the copies that memory needs, as kernels of their own.

After this pass every reshape is a view, contractions read operands that a GEMM can take, and every
returned value (or what it is a reshape of) is written by an op of its own: into the result's buffer,
or into the storage of the argument that it updates.

Before, where `%1` cannot be a view of `%0`, which is one of `%x`:

    %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 16>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    %2 = "gflow.matmul"(%1, %w) : (tensor<2x16xf32>, tensor<16x4xf32>) -> tensor<2x4xf32>

After:

    %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : …
    %c = "gflow.fused"(%0) ({
    ^bb0(%y: tensor<8x4xf32>):
      "gflow.yield"(%y) …
    }) {kind = "pointwise", …} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "gflow.reshape"(%c) {shape = array<i64: 2, 16>} : …
    %2 = "gflow.matmul"(%1, %w) : …

An update is written in place if nothing reads the old value later, and if the kernel that makes
it reads it only where it writes; else it goes to a buffer and is copied at the end.
"""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import COMPLEX, row_major_strides

from ..contractions import root_of, root_operands
from ..memory.in_place import reads_where_it_writes
from ..memory.results import owners
from ..ssa import Body, Op, aliases, read_body
from ..views import Layout, is_view, layouts
from .base import NoOptions, Pass

#: operands that must be dense and row-major: activations (weights may lie either way), indices
_DENSE = {
    "convolution": (0,),
    "convolution_input_grad": (0,),
    "convolution_weight_grad": (0, 1),
    "take": (1,),
    "index_add": (1, 2),
}

#: there are no kernels on complex numbers
_CLONE = {
    "overload": "aten.clone.default",
    "args": '[[{"t": 0}], {"memory_format": {"memory_format": "contiguous_format"}}]',
}


def copy_of(value: ir.Value) -> ir.Value:
    """A dense row-major copy at the insertion point: a fused op, or PyTorch's of complex numbers."""
    ty = builder.type_of(value)
    if ty.dtype in COMPLEX:
        return builder.build_op("aten", [value], _CLONE, [ty]).results[0]
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


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    _fix_operands(body, layouts(function, body))
    body = read_body(function)
    _fix_results(body, layouts(function, body), aliases(function, body))


def _fix_operands(body: Body, at: list[Layout]) -> None:
    """Copy operands that an op cannot read where they lie."""
    for o in body.ops:
        for n, v in enumerate(o.operands):
            if not _readable(o, n, body.types[v].shape, at):
                with o.op.location, ir.InsertionPoint(o.op):
                    o.op.operands[n] = copy_of(o.op.operands[n])


def _readable(o: Op, n: int, shape: tuple[int, ...], at: list[Layout]) -> bool:
    """Whether an op can read operand `n`, of this shape, where it lies."""
    if o.name == "reshape":
        return is_view(o, at)
    strides = at[o.operands[n]].strides
    name, numbers = o.name, [n]
    if o.name == "fused" and (root := root_of(o.op)) is not None:
        name = root.name.removeprefix("gflow.")
        numbers = [i for i, operand in enumerate(root_operands(root)) if operand == n]
    if name == "matmul":
        return not numbers or gemm_ready(shape, strides)
    dense = _DENSE.get(name, ())
    return strides == row_major_strides(shape) or not any(i in dense for i in numbers)


def _fix_results(body: Body, at: list[Layout], target: list[int | None]) -> None:
    """Copy what is returned, unless the op that makes it can write it to where it belongs.

    An old value that is also a result is saved before any copy overwrites it: plain results
    come first, then updates. An update that is an old value itself (two buffers swapped) goes by
    way of a buffer.
    """
    readers: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            readers.setdefault(at[v].base, []).append(o.index)
    updated = {body.arguments[alias] for alias in target if alias is not None}
    read_at_the_end = {at[v].base for v in body.returned}
    written: set[int] = set()
    copies: list[tuple[int, ir.Value]] = []
    with ir.InsertionPoint(body.terminator):
        for n, v in enumerate(owners(body, at, target)):
            alias = target[n]
            argument = -1 if alias is None else body.arguments[alias]
            if v == argument:
                continue  # it is where it belongs
            p = body.producer[v]
            own = p >= 0 and _makes(body.ops[p], at) and v not in written
            if own and argument >= 0:
                own = argument not in read_at_the_end and _in_place(
                    body, at, v, argument, readers.get(argument, [])
                )
            if own:
                written.add(v)
                continue
            value = body.values[body.returned[n]]
            if argument >= 0 and at[v].base in updated:
                with _location(value):
                    value = copy_of(value)
            copies.append((n, value))
        copies.sort(key=lambda c: target[c[0]] is not None)
        for n, value in copies:
            with _location(value):
                body.terminator.operands[n] = copy_of(value)


def _makes(o: Op, at: list[Layout]) -> bool:
    """Whether an op writes its results, as kernels do and views and constants don't."""
    return o.name in OPS and o.name != "constant" and not is_view(o, at)


def _in_place(body: Body, at: list[Layout], value: int, argument: int, readers: list[int]) -> bool:
    """Whether the op that makes `value` may write it into the argument's storage.

    readers: the ops that read the argument.
    """
    p = body.producer[value]
    o = body.ops[p]
    if any(r > p for r in readers):
        return False
    if p not in readers:
        return True
    result = o.results.index(value)
    return o.name == "fused" and all(
        operand == argument and reads_where_it_writes(o.op, n, result)
        for n, operand in enumerate(o.operands)
        if at[operand].base == argument
    )


def _location(value: ir.Value) -> ir.Location:
    return ir.Location.unknown() if isinstance(value.owner, ir.Block) else value.owner.location


PASS = Pass("gflow-materialize", run, NoOptions, __doc__ or "")

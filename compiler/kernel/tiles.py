"""The epilogue of a CPU contraction as a kernel over the rows and columns of the product, to run on each tile.

`describe` may have merged rows with columns into one dimension, or the epilogue may split them (heads of attention).
An epilogue by tiles needs an index space whose first dimensions make up the rows and whose last ones the columns.
"""

from __future__ import annotations

from dataclasses import replace

from gflow.compiler.targets.processors import ANY
from gflow.dialects.attributes import read
from gflow.dialects.extents import divisor, varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, is_row_major, type_of

from ..ir.ssa import Op
from .description import APART, Access, Kernel, annotate
from .movement import converting


@record
class Tiled:
    """An epilogue kernel. Its first `rows` dimensions make up the rows of the product, the others the columns."""

    kernel: Kernel
    rows: int

    @property
    def lanes(self) -> int:
        """Elements of a vector; half as many where the kernel has 64-bit values."""
        wide = any(n.dtype in ("f64", "i64", "ui64") for n in self.kernel.nodes if n.op != "const")
        return ANY.lanes // 2 if wide else ANY.lanes


def tiles_of(
    o: Op, root: ir.Operation, k: Kernel, returned: tuple[int, tuple[int, ...]] | None
) -> Tiled | None:
    """The epilogue of the contraction `root` of a fused op, by tiles; None where it cannot run on tiles.

    Args:
        o: the fused op.
        root: its contraction.
        k: the epilogue's kernel.
        returned: if the op also returns the contraction's own result: the number of that result, and its strides.
    """
    ty = type_of(root.results[0])
    if ty.dtype not in ("f32", "bf16") or not _is_one_matrix(root, ty):
        return None
    number = len(o.operands)
    if returned is not None:
        slot = next((i for i, a in enumerate(k.loads) if a.operand == number), None)
        if slot is None or not is_row_major(ty.shape, returned[1]):
            return None
        node = next(i for i, n in enumerate(k.nodes) if n.op == "load" and n.slot == slot)
        own = replace(k.loads[slot], operand=returned[0], node=node)
        k = replace(k, stores=[*k.stores, own])
    return in_tiles(k, ty.shape[-1], number)


def rounding(ty: TensorType, strides: tuple[int, ...]) -> Tiled | None:
    """The rounding of a product's float32 sums to its type `ty`, by tiles; None where it cannot run on tiles."""
    (rows, columns), inner = ty.shape[-2:], strides[-2:]
    wide = TensorType((rows, columns), "f32")
    return in_tiles(converting(wide, (columns, 1), ty.dtype, inner), columns, 0)


def rounding_rows(ty: TensorType) -> Tiled | None:
    """`rounding` for a row-major tensor whose last dimension is the product's columns, all others its rows."""
    columns = ty.shape[-1]
    return rounding(TensorType((ty.numel // columns, columns), ty.dtype), (columns, 1))


def _is_one_matrix(root: ir.Operation, ty: TensorType) -> bool:
    """Whether gflow's own kernel computes a contraction's result as one matrix, its last dimension as columns."""
    name = root.name.removeprefix("gflow.")
    if name == "packed_product":
        return True
    if name == "matmul":
        return ty.numel == ty.shape[-2] * ty.shape[-1]
    attrs = read(OPS[name], root.attributes)
    if name != "convolution" or attrs["layout"] != "N*C":
        return False
    depthwise = attrs["groups"] == ty.shape[-1] and type_of(root.operands[1]).shape[-1] == 1
    return depthwise or attrs["groups"] == 1


def in_tiles(k: Kernel, columns: int, root: int) -> Tiled | None:
    """An epilogue's kernel with its dimensions divided into rows and columns.

    None if the kernel has a reduction, if its dimensions cannot be divided so, or if `columns` is dynamic.

    Args:
        k: the epilogue's kernel.
        columns: the number of the product's columns.
        root: the number of the product's result among the kernel's operands.
    """
    if not k.sizes or k.reduced or varies(columns):
        return None
    if any(n.op == "reduce" or n.op in APART for n in k.nodes):
        return None
    sizes, at = list(k.sizes), len(k.sizes)
    left, inner = columns, 0  # left: columns / the sizes of dimensions from `at` on
    while left > 1:
        if not at:
            return None
        at -= 1
        if left % sizes[at] == 0 and not varies(sizes[at]):
            left //= sizes[at]
            continue
        if divisor(sizes[at]) % left:
            return None
        inner, left = left, 1
    if inner:
        k = _divided(k, at, inner)
        at += 1
    if not at:  # one row
        k = _divided(k, 0, k.sizes[0])
        at = 1
    across = k.sizes[at:]
    if not across or (len(across) > 1 and across[-1] % ANY.lanes):
        return None
    last = len(k.sizes) - 1
    rows = [a for a in k.loads if a.operand == root]
    if len(rows) != 1 or rows[0].strides[last] != 1 or rows[0].offset:
        return None
    return Tiled(k, at)


def _divided(k: Kernel, d: int, inner: int) -> Kernel:
    """The kernel with dimension `d` split in two, the second of size `inner`."""

    def cut(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:d], strides[d] * inner, strides[d], *strides[d + 1 :])

    def access(a: Access) -> Access:
        return replace(a, strides=cut(a.strides))

    sizes = (*k.sizes[:d], k.sizes[d] // inner, inner, *k.sizes[d + 1 :])
    nodes = [replace(n, dims=frozenset(), depth=0) for n in k.nodes]
    loads, stores = [access(a) for a in k.loads], [access(a) for a in k.stores]
    return annotate(Kernel(sizes, k.reduced, nodes, loads, [cut(s) for s in k.indices], stores))

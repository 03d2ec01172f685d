"""What follows a product, tile by tile: its kernel over the rows and columns of the product.

The dimensions of a kernel are merged where every operand walks them as one, which may be across rows, and they may be
finer than rows and columns, where what follows divides these (heads of attention). A tile needs dimensions of which the
first make up the rows and the last the columns.
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
from .description import Access, Kernel, annotate


@record
class Tiled:
    """A kernel whose first `rows` dimensions make up the rows of a product, and the others the columns."""

    kernel: Kernel
    rows: int

    @property
    def lanes(self) -> int:
        """Elements of a vector: half as many where some value has 64 bits."""
        wide = any(n.dtype in ("f64", "i64", "ui64") for n in self.kernel.nodes if n.op != "const")
        return ANY.lanes // 2 if wide else ANY.lanes


def tiles_of(
    o: Op, root: ir.Operation, k: Kernel, returned: tuple[int, tuple[int, ...]] | None
) -> Tiled | None:
    """What follows the contraction `root` of a fused op, by tiles; None where it cannot be.

    Args:
        k: its kernel.
        returned: where the op returns the contraction's own result, too: that one's number, and its strides.
    """
    ty = type_of(root.results[0])
    if ty.dtype != "f32" or not _is_one_matrix(root, ty):
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


def _is_one_matrix(root: ir.Operation, ty: TensorType) -> bool:
    """Whether a contraction of this result computes one matrix by tiles, its last dimension across."""
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
    """The kernel of what follows a product by tiles; None where it reduces, or its dimensions aren't such.

    Args:
        columns: of the product.
        root: the number of the product's result among the kernel's operands.
    """
    if not k.sizes or k.reduced or varies(columns):
        return None
    if any(n.op in ("reduce", "partial_sums") for n in k.nodes):
        return None
    sizes, at = list(k.sizes), len(k.sizes)
    left, inner = columns, 0  # columns that dimensions from `at` on do not cover yet
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
    """The kernel with dimension `d` as two, the second of so many positions."""

    def cut(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:d], strides[d] * inner, strides[d], *strides[d + 1 :])

    def access(a: Access) -> Access:
        return replace(a, strides=cut(a.strides))

    sizes = (*k.sizes[:d], k.sizes[d] // inner, inner, *k.sizes[d + 1 :])
    nodes = [replace(n, dims=frozenset(), depth=0) for n in k.nodes]
    loads, stores = [access(a) for a in k.loads], [access(a) for a in k.stores]
    return annotate(Kernel(sizes, k.reduced, nodes, loads, [cut(s) for s in k.indices], stores))

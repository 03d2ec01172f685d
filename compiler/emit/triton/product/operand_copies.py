"""Copies of operands that lie badly, made before the kernel that reads them."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.matmul import Product
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..program_builder import Builder
from ..region.fused import launch


def copied(
    b: Builder, p: Product, places: Sequence[Place], choice: Choice, label: str
) -> tuple[Product, list[Place]]:
    """A product with the copies of its operands that were chosen, which are made first; where the operands lie then."""
    found = list(places)
    choice.check(not choice.copies or not p.dims, "copies operands of more than one product")
    for name in choice.copies:
        choice.check(name in ("a", "b"), f"copies {name}, which is neither a nor b")
        n = "ab".index(name)
        old, after = (p.x, p.y)[n], p.copied(name)
        new = (after.x, after.y)[n]
        start = b.scratch(after.reserved)
        place = start._replace(offset=start.offset + p.reserved)
        ty = TensorType(p.shape(name), old.dtype)
        copy(b, ty, found[n], (old.rows, old.cols), place, (new.rows, new.cols), label)
        p, found[n] = after, place
    return p, found


def copy(
    b: Builder,
    ty: TensorType,
    source: Place,
    strides: tuple[int, ...],
    target: Place,
    target_strides: tuple[int, ...],
    label: str,
) -> None:
    """Add the launch that copies a tensor."""
    load = Access(0, ty.dtype, strides)
    store = Access(0, ty.dtype, target_strides, 0)
    node = Node("load", ty.dtype, slot=0)
    k = simplify(Kernel(ty.shape, frozenset(), [node], [load], [], [store]))
    launch(b, k, [source], [target], label)

"""Padded copies of a product's operands, made before the product."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.kernel.movement import Copy, copying
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.product.matmul import Product
from gflow.dialects.program import Place

from ..program_builder import Builder
from ..region.fused import launch


def copied(
    b: Builder, p: Product, places: Sequence[Place], choice: Choice, label: str
) -> tuple[Product, list[Place]]:
    """Add the chosen copies of operands; return the product of the copies, and the addresses of its operands."""
    found = list(places)
    choice.check(not choice.copies or not p.dims, "copies operands of more than one product")
    for name in choice.copies:
        choice.check(name in ("a", "b"), f"copies {name}, which is neither a nor b")
        n = "ab".index(name)
        after = p.copied(name)
        start = b.scratch(after.reserved)
        place = start._replace(offset=start.offset + p.reserved)
        copy(b, p.copy_of(name)._replace(source=found[n], target=place), label)
        p, found[n] = after, place
    return p, found


def copy(b: Builder, made: Copy, label: str) -> None:
    """Add the launch that copies a tensor."""
    launch(b, copying(made).k, [made.source], [made.target], label)

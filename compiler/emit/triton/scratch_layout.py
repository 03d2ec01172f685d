"""Places in an op's scratch, one behind the other."""

from __future__ import annotations

from gflow.dialects.program import Place

from .program_builder import Builder


def behind(b: Builder, taken: int, size: int) -> Place:
    """So many bytes of scratch after what is taken."""
    start = b.scratch(taken + size)
    return Place(start.space, start.index, start.offset + taken)

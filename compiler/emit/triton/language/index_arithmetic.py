"""Conversion of flat positions to coordinates and offsets, as lines of Triton."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.kernel.dimensions import merged

from .parameters import Parameters, term, total


def offsets(
    p: Parameters, stem: str, position: str, sizes: Sequence[int], walks: Sequence[Sequence[int]],
    lines: list[str],
) -> list[str]:  # fmt: skip
    """Append lines that split a flat row-major position over `sizes` into coordinates; return the walks' offsets."""
    own, strides = merged(sizes, walks)
    names: list[str] = []
    rest = position
    for d in range(len(own) - 1, -1, -1):
        if d == 0:
            names.append(rest)
            break
        size = p.number(f"{stem}_size{d}", own[d])
        lines.append(f"{stem}{d} = {rest} % {size}")
        lines.append(f"{stem}_rest{d} = {rest} // {size}")
        names.append(f"{stem}{d}")
        rest = f"{stem}_rest{d}"
    names.reverse()
    return [
        total(term(n, p.stride(f"{stem}_walk{w}_{d}", s)) for d, (n, s) in enumerate(zip(names, walk)))
        for w, walk in enumerate(strides)
    ]  # fmt: skip

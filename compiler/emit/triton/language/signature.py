"""The text of a kernel that follows from its parameters: what Triton may assume of numbers, and names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from gflow.dialects.program import TritonConfig

from ..program_builder import NAME, Builder, Source
from .device_functions import source
from .parameters import Parameters, indented


class Described(Protocol):
    """What a kernel is for. label: for profiles; comment: the op, for readers of the source."""

    label: str
    comment: Callable[[], str] | None


def add_kernel(
    b: Builder,
    stem: str,
    params: Parameters,
    names: list[str],
    lines: list[str],
    configs: Sequence[TritonConfig],
    grid: Sequence[str],
    constants: dict[str, int],
    epilogue: Described,
    used: set[str],
    without_divisibility: frozenset[str] = frozenset(),
) -> None:
    """Add the launch of a kernel.

    names: of its `tl.constexpr` parameters. lines: its body. without_divisibility: parameters for which Triton is not
    told that they are multiples of 16, which would only give more variants of the kernel.
    """
    wanted = {
        n
        for n in params.types
        if not _WITHOUT_DIVISIBILITY.match(n) and n not in without_divisibility
    }
    params, lines, grid = _factored(params, lines, grid, wanted)
    head = [*params.types, *(f"{n}: tl.constexpr" for n in names)]
    text = "\n".join([f"def {NAME}(", *indented([f"{h}," for h in head]), "):", *indented(lines)])
    made = Source(
        _short(stem), source(text + "\n", used), params.types, tuple(configs), tuple(grid), constants,
        frozenset(wanted), epilogue.comment,
    )  # fmt: skip
    b.launch(made, params.values, epilogue.label)


def _factored(
    params: Parameters, lines: list[str], grid: Sequence[str], wanted: set[str]
) -> tuple[Parameters, list[str], list[str]]:
    """Numbers that are multiples of 8 or 4, but not of 16, with that factor in the text, so that Triton knows.

    N = 24    →    N = N_by8 * 8, N_by8 = 3
    """
    found, head, grid = Parameters(), [], list(grid)
    for (name, kind), value in zip(params.types.items(), params.values, strict=True):
        factor = 1
        if name in wanted and isinstance(value, int) and value % 16 and kind in ("i32", "i64"):
            factor = next((f for f in (8, 4) if value % f == 0), 1)
        if factor == 1 or not isinstance(value, int):
            found.types[name] = kind
            found.values.append(value)
            continue
        short = f"{name}_by{factor}"
        found.types[short] = kind
        found.values.append(value // factor)
        head.append(f"{name} = {short} * {factor}")
        grid = [re.sub(rf"\b{name}\b", f"({short} * {factor})", g) for g in grid]
    return found, [*head, *lines], grid


#: numbers that no address is a multiple of: it helps no load to know that they are multiples of 16
_WITHOUT_DIVISIBILITY = re.compile(
    r"batches|splits|phases|rows|(y_size|x_size|q_size|stride|padding|dilation|stream|batch_)\w*$"
)


_LONGEST = 60


def _short(stem: str) -> str:
    """A readable name that isn't too long."""
    if len(stem) <= _LONGEST:
        return stem
    return f"{stem[: _LONGEST - 7]}_{hashlib.sha256(stem.encode()).hexdigest()[:6]}"

"""Kernel signatures: parameter names, and what Triton may assume of integers (multiples of 16)."""

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
    """The origin of a kernel. label: for profiles. comment: the op, for readers of the source."""

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

    Args:
        b: the builder.
        stem: the start of its name.
        params: its parameters, with the arguments of this launch.
        names: the names of its `tl.constexpr` parameters.
        lines: its body.
        configs: its configurations.
        grid: expressions of the grid's sizes.
        constants: the values of further constants.
        epilogue: its origin.
        used: the device functions that it calls.
        without_divisibility: the parameters for which Triton is not told that they are multiples of 16, which would
            only give more variants of the kernel.
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
    """Write the factor of integers that are multiples of 8 or 4, but not of 16, into the source for Triton.

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


#: numbers that are no factors of addresses: knowing that they are multiples of 16 does not help
_WITHOUT_DIVISIBILITY = re.compile(
    r"batches|splits|phases|rows|(y_size|x_size|q_size|stride|padding|dilation|stream|batch_)\w*$"
)


_LONGEST = 60


def _short(stem: str) -> str:
    """The start of a kernel's name, shortened."""
    if len(stem) <= _LONGEST:
        return stem
    return f"{stem[: _LONGEST - 7]}_{hashlib.sha256(stem.encode()).hexdigest()[:6]}"

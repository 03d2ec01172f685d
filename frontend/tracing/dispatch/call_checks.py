"""Checks of a call that eager's kernels make: of its dtypes, sizes and numbers. All tracers use this function."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from .failures.checks import CHECKS
from .symbols.held_numbers import NUMBERS, number_problem


def call_problem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why eager's kernels refuse a call, as the end of an error message that begins with the op's name; None if they
    do not.

    Args:
        func: an overload.
        args, kwargs: its arguments. Tensors may be of any kind; their values are not read.
    """
    check = CHECKS.get(func)
    problem = check(args) if check is not None else None
    if problem is not None or func not in NUMBERS:
        return problem
    with _disable_current_modes():  # promotion of numbers creates tensors
        return number_problem(func, args, kwargs)

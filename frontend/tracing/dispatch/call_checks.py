"""What eager's kernels have against a call, by its dtypes, sizes and numbers: the one question of all that trace."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from .failures.checks import CHECKS
from .symbols.held_numbers import NUMBERS, number_problem


def call_problem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What follows the op's name in an error; None where nothing is wrong. func: an overload. Tensors may be of any
    kind: none of their values is read."""
    check = CHECKS.get(func)
    problem = check(args) if check is not None else None
    if problem is not None or func not in NUMBERS:
        return problem
    with _disable_current_modes():  # types of numbers are found by a tensor
        return number_problem(func, args, kwargs)

"""What is printed while a graph is built, as data; `report/debug.py` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphError

from .location import here

_LEVELS = range(-1, 4)


@record
class DebugSettings:
    """What is printed; the fields are the parameters of `debug_settings`."""

    v_level: int = 0
    max_py_stack_depth: int = 2
    only_user_py_stack: bool = True
    op_repr_with_py_stack: bool = False

    @property
    def stack(self) -> bool:
        """Whether ops are printed with their Python stack."""
        return self.v_level >= 3 or (self.v_level >= 2 and self.op_repr_with_py_stack)

    @property
    def listed_stack(self) -> bool:
        """Whether `print(graph)` shows the Python stack of ops."""
        return self.v_level >= 3 or self.op_repr_with_py_stack


def debug_settings(
    v_level: int = 0,
    *,
    ranks: int | Sequence[int] | None = None,
    max_py_stack_depth: int = 2,
    only_user_py_stack: bool = True,
    op_repr_with_py_stack: bool = False,
) -> DebugSettings | None:
    """What to print on this process; None for nothing.

    Args:
        v_level: the level, 0 to 3; -1 turns printing off.
        ranks: the processes that print: None for the first only, -1 for all, a number or several.
        max_py_stack_depth: the maximal number of Python lines that are shown for an op.
        only_user_py_stack: omit lines inside of PyTorch, gflow and the standard library.
        op_repr_with_py_stack: show these lines at level 2, too, and at any level in `print(graph)`.

    Raises:
        GraphError: an argument is invalid.
    """
    for name, value, good in (
        ("v_level", v_level, _whole(v_level) and v_level in _LEVELS),
        ("max_py_stack_depth", max_py_stack_depth, _whole(max_py_stack_depth)),
    ):
        if not good:
            what = "-1, 0, 1, 2 or 3" if name == "v_level" else "a number of lines"
            raise GraphError(f"{here()}: debug() takes {what} as {name}; got {value!r}")
    chosen: Any = [ranks] if _whole(ranks) else ranks
    if chosen is not None and not (
        isinstance(chosen, (list, tuple)) and all(_whole(r) and r >= -1 for r in chosen)
    ):
        raise GraphError(
            f"{here()}: debug() takes None (the first process), -1 (all), a rank or a list of "
            f"ranks as ranks; got {ranks!r}"
        )
    listed = [0] if chosen is None else list(chosen)
    if v_level < 0 or not (-1 in listed or _rank() in listed):
        return None
    return DebugSettings(v_level, max_py_stack_depth, only_user_py_stack, op_repr_with_py_stack)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rank() -> int:
    """The rank of this process among those that train together."""
    distributed = torch.distributed
    return (
        distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    )

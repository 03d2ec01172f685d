"""The choice for each op of a function."""

from __future__ import annotations

import os
from collections.abc import Callable

from gflow.compiler.targets import Target
from gflow.dialects.mlir import func

from ...ir.errors import CannotLower, PassError
from ...ir.ssa import Op
from ...ir.views import IN_PLACE, is_view
from ...memory.liveness import Lives
from .choice import Choice
from .cpu.chooser import Chooser
from .gpu.chooser import chooser


def choices(
    function: func.FuncOp, lives: Lives, target: Target, threads: int = 0, blas: bool = True
) -> dict[int, Choice]:
    """The choice for each op that runs, by its number.

    lives: what of the function lies where. threads, blas: of a processor, as `gflow-select-kernels` has them.

    Raises:
        PassError: an op has no code.
    """
    choose: Callable[[Op], Choice]
    if not target.gpu:
        choose = Chooser(lives, threads or os.cpu_count() or 1, blas)
    else:
        choose = chooser(function, lives.body, lives.at, target)
    found = {}
    for o in lives.body.ops:
        if is_view(o, lives.at) or o.name == "constant":
            continue
        if IN_PLACE in o.op.attributes:
            found[o.index] = Choice("none")
            continue
        try:
            found[o.index] = choose(o)
        except CannotLower as error:
            raise PassError(str(error), o.op) from None
    return found


def scratch_of(function: func.FuncOp, lives: Lives, target: Target) -> dict[int, int]:
    """The scratch of each op that needs some, as its kernel would be chosen now."""
    return {i: c.scratch for i, c in choices(function, lives, target).items() if c.scratch}

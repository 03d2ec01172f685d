"""The choice for each op of a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from gflow.compiler.targets import Target
from gflow.compiler.targets.processors import PROCESSORS, host_level
from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func

from ...ir.errors import CannotLower, PassError
from ...ir.ssa import Op
from ...ir.views import IN_PLACE, PADDED, is_view
from ...memory.liveness import Lives
from ..contest import Contest
from .choice import Choice, choice_of
from .cpu.chooser import Chooser


def choices(
    function: func.FuncOp,
    lives: Lives,
    target: Target,
    threads: int = 0,
    blas: bool = True,
    isa: str = "",
) -> dict[int, Choice]:
    """The choice for each op that runs, by its number.

    lives: what of the function lies where. threads, blas, isa: of a processor, as `gflow-select-kernels` has them.

    Raises:
        PassError: an op has no code.
    """
    found = {}
    for o, choose in _running(function, lives, target, threads, blas, isa):
        try:
            found[o.index] = choose(o)
        except CannotLower as error:
            raise PassError(str(error), o.op) from None
    return found


def contests_of(
    function: func.FuncOp, lives: Lives, threads: int, isa: str
) -> dict[int, tuple[Op, Contest]]:
    """The contest of own kernel and BLAS for each op that both can compute on a CPU, by the op's number."""
    choose = Chooser(lives, threads, True, PROCESSORS.get(isa))
    found = {}
    for o in lives.body.ops:
        if KERNEL in o.op.attributes and choice_of(o.op).kind in (
            "blas",
            "panels",
            "rows",
            "patches",
        ):
            choose.asked.clear()
            choose(o)
            if choose.asked:
                found[o.index] = o, choose.asked[-1]
    return found


def decided(
    lives: Lives, threads: int, isa: str, won: Mapping[Contest, bool], o: Op, device: str
) -> Choice:
    """The choice for a product after races. won: their results. device: the machine's name, for `tuned`."""
    choose = Chooser(lives, threads, True, PROCESSORS.get(isa), won)
    return replace(choose(o), tuned=device)


def scratch_of(function: func.FuncOp, lives: Lives, target: Target) -> dict[int, int]:
    """The scratch of each op that needs some, as its kernel would be chosen now. Ops that have no code yet, as reshapes
    that `gflow-materialize` will make copies of, need none."""
    found = {}
    for o, choose in _running(function, lives, target, 0, True, ""):
        with suppress(CannotLower):
            found[o.index] = choose(o).scratch
    return {i: size for i, size in found.items() if size}


def _running(
    function: func.FuncOp, lives: Lives, target: Target, threads: int, blas: bool, isa: str
) -> Iterator[tuple[Op, Callable[[Op], Choice]]]:
    """The ops that run, in order, and what chooses for each."""
    choose: Callable[[Op], Choice]
    if not target.gpu:
        choose = Chooser(
            lives, threads or os.cpu_count() or 1, blas, PROCESSORS.get(isa or host_level())
        )
    else:
        # start-up: a program for a processor needs no choices for GPUs
        from .gpu.chooser import chooser

        choose = chooser(function, lives.body, lives.at, target)
    for o in lives.body.ops:
        if PADDED in o.op.attributes and not target.gpu:
            raise PassError(f"'{PADDED}' is for kernels of GPUs", o.op)
        if not is_view(o, lives.at) and o.name != "constant":
            yield o, _nothing if IN_PLACE in o.op.attributes else choose


def _nothing(o: Op) -> Choice:
    """For an op whose result is written by what makes its operands."""
    return Choice("none")

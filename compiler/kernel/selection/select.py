"""Kernel selection for each op of a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from gflow.compiler.targets import Target
from gflow.compiler.targets.processors import PROCESSORS, host_level
from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func
from gflow.dialects.records import record

from ...ir.errors import CannotLower, PassError
from ...ir.ssa import Op
from ...ir.views import IN_PLACE, PADDED, is_view
from ...memory.liveness import Lives
from ..contest import Contest
from ..description import Descriptions, descriptions
from .choice import Choice, choice_of
from .cpu.chooser import Chooser
from .cpu.products import Products


def choices(
    function: func.FuncOp,
    lives: Lives,
    target: Target,
    threads: int = 0,
    blas: bool = True,
    isa: str = "",
    direct: bool = True,
    winograd: bool = True,
) -> dict[int, Choice]:
    """The choice for each op that runs, by the op's number.

    Args:
        function: the function, which the caller has not changed yet.
        lives: its values' layouts, live ranges and places.
        target: the target.
        threads: CPU: the most threads that run a kernel; 0: the number of the host's CPUs.
        blas: CPU: whether kernels may call the BLAS.
        isa: CPU: the instruction set (a key of `PROCESSORS`); "": the host's.
        direct: CPU: whether convolutions may read windows in place.
        winograd: CPU: whether 3×3 convolutions may run by Winograd's algorithm.

    Raises:
        PassError: an op has no kernel for the target.
    """
    found = {}
    known = descriptions(function)
    given = (threads, blas, isa, direct, winograd)
    for o, choose in _running(function, lives, target, given, known):
        try:
            found[o.index] = choose(o)
        except CannotLower as error:
            raise PassError(str(error), o.op) from None
    return found


@record
class Contested:
    """A product that both gflow's own kernel and the BLAS can compute.

    Attributes:
        op: the product's op.
        contest: the key of the comparison.
        own: whether the cost model takes gflow's own kernel.
        choice: the choice by the cost model.
    """

    op: Op
    contest: Contest
    own: bool
    choice: Choice


def contested(function: func.FuncOp, lives: Lives, threads: int, isa: str) -> dict[int, Contested]:
    """The products whose kernels can be compared on a CPU, by the op's number."""
    # convolutions that read windows in place have no such comparison
    products = Products(threads, True, PROCESSORS.get(isa), direct=False)
    choose = Chooser(lives, descriptions(function), products)
    found = {}
    for o in lives.body.ops:
        if KERNEL in o.op.attributes and choice_of(o.op).kind in (
            "blas",
            "panels",
            "rows",
            "patches",
        ):
            products.asked.clear()
            choice = choose(o)
            if products.asked:
                found[o.index] = Contested(o, *products.asked[-1], choice)
    return found


def decided(
    product: Contested,
    function: func.FuncOp,
    lives: Lives,
    threads: int,
    isa: str,
    won: Mapping[Contest, bool],
    device: str,
) -> Choice:
    """The choice for a product after timed comparisons.

    Args:
        won: by key of a comparison, whether gflow's own kernel was faster.
        device: the name of the machine, for the field `tuned`.
    """
    choice = product.choice
    if won[product.contest] != product.own:
        products = Products(threads, True, PROCESSORS.get(isa), won, direct=False)
        choice = Chooser(lives, descriptions(function), products)(product.op)
    return replace(choice, tuned=device)


def scratch_of(function: func.FuncOp, lives: Lives, target: Target) -> dict[int, int]:
    """The scratch in bytes of each op that needs some, by the op's number, if kernels were selected now.

    Ops without a kernel are left out, such as reshapes that `gflow-materialize` will turn into copies.
    """
    found = {}
    given = (0, True, "", True, True)
    for o, choose in _running(function, lives, target, given, Descriptions()):
        with suppress(CannotLower):
            found[o.index] = choose(o).scratch
    return {i: size for i, size in found.items() if size}


def _running(
    function: func.FuncOp,
    lives: Lives,
    target: Target,
    given: tuple[int, bool, str, bool, bool],
    describe: Descriptions,
) -> Iterator[tuple[Op, Callable[[Op], Choice]]]:
    """The ops that run, in order, each with the function that selects its kernel. given: the options of `choices`."""
    threads, blas, isa, direct, winograd = given
    choose: Callable[[Op], Choice]
    if not target.gpu:
        processor = PROCESSORS.get(isa or host_level())
        most = threads or os.cpu_count() or 1
        choose = Chooser(
            lives, describe, Products(most, blas, processor, direct=direct, winograd=winograd)
        )
    else:
        # start-up time: programs for CPUs do not need the selection for GPUs
        from .gpu.chooser import chooser

        choose = chooser(function, lives.body, lives.at, target)
    for o in lives.body.ops:
        if PADDED in o.op.attributes and not target.gpu:
            raise PassError(f"'{PADDED}' is for kernels of GPUs", o.op)
        if not is_view(o, lives.at) and o.name != "constant":
            yield o, _nothing if IN_PLACE in o.op.attributes else choose


def _nothing(o: Op) -> Choice:
    """The choice for an op whose operands' producers write its result in place."""
    return Choice("none")

"""The input of tracing: `TraceRequest`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Any

import torch

from gflow.dialects.records import record

from .data.bound_call import BoundCall
from .program.modules import ModuleTable, Reached


@record
class TraceRequest:
    """One call of `build()`, and the rest of its step.

    Args:
        call: the call; with `micro_batches`, the call of the first micro-batch.
        table: the graph's modules.
        optimizers: the optimizers that step after `build()`.
        scaler: a gradient scaler, or None.
        kept: whether a parameter's gradient can be read after the step.
        micro_batches: how many calls of `build()` make one step.
        stacked: whether a result that is a single number is returned as one number for each micro-batch.
        schedule: the order in which pipeline stages run the micro-batches; "" for ascending order.
        sparse: the indices of the optimizers that update only the rows that were looked up.
        tail: whether ops whose shapes depend on values may run after the program.
        known: whether the program may be made for values of integers and masks of the call.
        truths: of the conditions on values that Python asks for, in their order, as far as they are known; None: there
            must be none.
        eager_random: whether random ops draw the numbers of eager ones.
        reached: modules and other objects that `build()` reaches outside of `table`.
    """

    name: str
    call: BoundCall
    table: ModuleTable
    optimizers: Sequence[torch.optim.Optimizer] = ()
    scaler: Any = None
    kept: Callable[[torch.Tensor], bool] = lambda parameter: False
    micro_batches: int = 1
    stacked: bool = False
    schedule: str = ""
    sparse: Collection[int] = ()
    reached: Reached = field(default_factory=Reached)
    tail: bool = False
    known: bool = False
    truths: tuple[bool, ...] | None = None
    eager_random: bool = False

    def is_sparse(self, index: int) -> bool:
        """Whether optimizer number `index` updates only the rows that were looked up."""
        return index in self.sparse or isinstance(self.optimizers[index], torch.optim.SparseAdam)

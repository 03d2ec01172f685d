"""What is to be traced: `TraceRequest`."""

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
    """One call of `build()`, and what makes a step of it.

    call: the call; with `micro_batches`, that of the first of them. table: the graph's modules. optimizers: those
    that update their parameters after `build()`. scaler: a gradient scaler. kept: whether a parameter's gradient
    can be read after the step. micro_batches: how many calls of `build` make one step. stacked: single numbers
    come as one for each of them. schedule: in which order pipeline stages run these; "" by their number. sparse: the
    optimizers, by number, that update only the rows that were looked up. reached: modules and other objects that
    `build()` reaches in other ways than by `table`.
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

    def is_sparse(self, index: int) -> bool:
        """Whether optimizer number `index` is."""
        return index in self.sparse or isinstance(self.optimizers[index], torch.optim.SparseAdam)

"""From a trace of ATen calls to a module in the `gflow` dialect.

Each ATen overload has a rule (`registry.py`, files by family), else PyTorch's own decomposition is
lowered (`decompose.py`), else the call becomes `gflow.aten` (`escape.py`).

    calls        lowering one call: its rule, else its decomposition, else `gflow.aten`
    collectives  functional collectives of `torch.distributed` become `gflow.collective`
    checks       what eager PyTorch refuses because of values, as `gflow.check` ops in front of the call
    decompose    PyTorch's own decompositions, lowered op by op
    driver       `lower`: the walk over a trace, and the function around it
    dtypes       element types between torch and the dialect, and PyTorch's type promotion over lowered values
    emitter      writing gflow ops by values with operators: constants, elementwise ops, shapes, reductions
    escape       calls without a lowering become `gflow.aten`
    global_view  a trace of global tensors: mesh and shardings in the IR, and the program of each rank
    op_writer    appending ops to a block: their locations, marks, types and attributes, each made once
    pointwise    the frame of every elementwise rule: promotion, broadcast, compute in opmath, round once
    registry     which function lowers which ATen call
    rules/       how each ATen op is lowered
"""

from __future__ import annotations

from .driver import Escaped, escaped, lower

__all__ = ["Escaped", "escaped", "lower"]

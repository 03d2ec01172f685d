"""Micro-batches of global tensors: each rank splits its own rows, so a micro-batch has some rows of each rank.

Results with the rows of the batch have the sharding of the inputs, and each rank concatenates its own; other results
are replicated. Rows with another sharding would be concatenated in another order than the rows of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gflow.errors import GraphTraceError

from ..data.global_tensors import axes_of
from ..data.trace import Trace
from ..data.values import TraceInput

_ROWS = "S(0)"


def rows_and_axes(
    inputs: Iterable[TraceInput], mesh: Any, name: str
) -> tuple[int, tuple[str, ...]]:
    """The number of rows of a micro-batch (-1 if inputs differ), and the mesh axes over which they are sharded.

    Raises:
        GraphTraceError: inputs are sharded over different axes, so their rows would not belong to the same samples.
    """
    axes, found = axes_of(mesh), {}
    given = [i for i in inputs if i.role == "input" and i.value.shape]
    for i in given:
        along = ("B",) * len(axes) if i.layout is None else i.layout.along(axes)
        found[tuple(a for a, p in zip(axes, along) if p == _ROWS)] = i.name
    if len(found) > 1:
        told = ", ".join(f"{i!r} over {'/'.join(a) or 'none'}" for a, i in found.items())
        raise GraphTraceError(
            f"{name}: with set_gradient_accumulation_steps(), each rank splits the rows that it holds of an input, and "
            f"inputs have their rows split over different dimensions of the mesh: {told}. Place all inputs with rows "
            "in one way; keep what has no row for each sample as a buffer of a module."
        )
    rows = {i.value.shape[0] for i in given}
    return (rows.pop() if len(rows) == 1 else -1), next(iter(found), ())


def check_joined(trace: Trace, shardings: Sequence[Any]) -> None:
    """Check the results of a micro-batch's program. shardings: of its results; empty without global tensors.

    Raises:
        GraphTraceError: rows of a result have another sharding than those of the inputs.
    """
    if trace.mesh is None:
        return
    rows, split = rows_and_axes(trace.inputs, trace.mesh, trace.name)
    for n, (out, sharding) in enumerate(zip(trace.outputs, shardings)):
        if out.alias is not None or sharding is None or not out.value.shape:
            continue
        found = tuple(a for a, p in zip(axes_of(trace.mesh), sharding) if p == _ROWS)
        if found != (split if out.value.shape[0] == rows else ()):
            raise GraphTraceError(
                f"{trace.name}: result {n} of build() has its rows split over {'/'.join(found)}, and micro-batches "
                "(set_gradient_accumulation_steps) are joined rank by rank, where the batch is split over "
                f"{'/'.join(split) or 'no dimension'} of the mesh. Place the result in build(): gflow.to_global(y, "
                "placement, sbp)."
            )

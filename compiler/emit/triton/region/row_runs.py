"""Kernels over rows that also sum columns: each program processes a run of rows, and stores the sums of its run.

    for each tile of the run: load · reductions along the rows · store · add to the sums
    store the sums

A norm's backward thus reads its operands once, for the gradient of the input (by rows) and for those of weight and bias
(by columns). Another kernel adds the sums of the runs in a fixed order, so results are deterministic.
"""

from __future__ import annotations

from gflow.compiler.kernel.selection.gpu.region.tiling import partial_stores

from ..language.expressions import triton_type
from .reductions import across, finished, levels, operand, reductions
from .writer import Writer


def write_runs(w: Writer) -> None:
    """Write the kernel: a program iterates over a run of rows, and stores one partial sum of each column."""
    k = w.k
    partial = sorted(partial_stores(k))
    sums = list(dict.fromkeys(k.stores[n].node for n in partial))
    rows = frozenset(w.t.rows)
    for r in sums:
        w.line(f"acc_{r} = tl.full({w.shape()}, 0.0, {triton_type(k.nodes[r].dtype)})")

    def reduce_rows(in_run: bool) -> None:
        for level in range(1, levels(k) + 1):
            for r in reductions(k, level):
                if bool(k.nodes[r].dims & rows) == in_run:
                    finished(w, r, across(w, k.nodes[r], operand(w, r, True)))

    def body() -> None:
        reduce_rows(True)
        for r in sums:
            x, mask = w.value(k.nodes[r].args[0]), w.mask(rows)
            w.line(f"acc_{r} += " + (f"tl.where({mask}, {x}, 0.0)" if mask else x))
        w.write([n for n in range(len(k.stores)) if n not in partial])

    reduce_rows(False)  # reductions that do not depend on the row
    w.loop("rows", body)
    for r in sums:
        w.line(f"sum_{r} = tl.sum(acc_{r}, 0, keep_dims=True)")
    for n in partial:
        w.store(n, f"sum_{k.stores[n].node}")

"""Kernels over rows that also sum columns: each program takes a run of rows, and leaves the sums of its run.

    for each tile of the run: load · reductions along the rows · store · add to the sums
    store the sums

So a norm's backward reads what it needs once: the gradient of the input by rows, those of weight and bias by columns.
What the runs leave is summed by another kernel, in one order, so results are the same bits every time.
"""

from __future__ import annotations

from gflow.compiler.kernel.selection.gpu.region.tiling import partial_stores

from ..language.expressions import triton_type
from .reductions import across, finished, levels, operand, reductions
from .writer import Writer


def write_runs(w: Writer) -> None:
    """A program walks a run of rows; it adds what is reduced over rows to one partial result per run."""
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

    reduce_rows(False)  # of what all rows share
    w.loop("rows", body)
    for r in sums:
        w.line(f"sum_{r} = tl.sum(acc_{r}, 0, keep_dims=True)")
    for n in partial:
        w.store(n, f"sum_{k.stores[n].node}")

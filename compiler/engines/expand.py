"""Legalizes a function for a format: inlines regions, applies decompositions, writes out constants.

    %0 = "gflow.reduce"(%x) {kind = "argmax", dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xi64>

becomes, for StableHLO,

    %0 = "gflow.reduce"(%x) {kind = "max", …}   %1 = "gflow.broadcast"(%0) …
    %2 = "gflow.compare"(%x, %1) {predicate = "eq"}   …
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gflow.compiler.ir.locations import source_of
from gflow.compiler.ir.ssa import clone_region
from gflow.dialects.distribution.mesh import MESH, mesh_of
from gflow.dialects.mlir import ir
from gflow.dialects.ops.structure import CHECK, ENGINE_YIELD

from .decompositions import decompose
from .form import INLINE, Form, call_of, refuse


@contextmanager
def expanded(op: ir.Operation, form: Form, checks: bool = False) -> Iterator[tuple[ir.Block, int]]:
    """A copy of an op's region with only ops of the format, inside a context manager.

    Yields the block of the copy, and the number of `gflow.check` ops that were left out. The op is not modified. Its
    MLIR context and a location are current inside the context manager.

    Args:
        op: a function, or an op with a region.
        form: the format.
        checks: whether checks may be left out.

    Raises:
        EngineError: there are ops that the format does not support.
    """
    with op.context, ir.Location.unknown(op.context):
        scratch = ir.Module.create()
        if (mesh := mesh_of(op)) is not None:  # for the groups of collectives
            scratch.operation.attributes[MESH] = mesh.mlir()
        with ir.InsertionPoint(scratch.body):
            copy = op.clone()
        block = copy.regions[0].blocks[0]
        dropped = _expand(block, form, checks)
        yield block, dropped


def _expand(block: ir.Block, form: Form, checks: bool) -> int:
    """Rewrite a block in place until all ops are of the format; returns the number of checks that were left out.

    Raises:
        EngineError: there are ops that the format does not support.
    """
    dropped = 0
    for view in list(block.operations):
        if checks and view.operation.name == f"gflow.{CHECK}":
            view.operation.erase()
            dropped += 1
    while _round(block, form):
        pass
    _sweep(block)
    return dropped


def _round(block: ir.Block, form: Form) -> bool:
    """Inline or decompose each op once if it isn't of the format; returns whether there was such an op.

    Raises:
        EngineError: there are ops that the format does not support.
    """
    problems: list[str] = []
    changed = False
    for op in [o.operation for o in block.operations]:
        name = op.name.removeprefix("gflow.")
        if name == op.name or name in ("yield", ENGINE_YIELD):
            continue
        if name in INLINE:
            results = clone_region(op)[1]
        else:
            call = call_of(op)
            why = form.why_not(call)
            if why:
                problems.append(f"gflow.{name} of {source_of(op)}: {why}")
                continue
            if form.has(call):
                continue
            with ir.InsertionPoint(op), op.location:
                results = decompose(name, list(op.operands), call.attrs)
        for old, new in zip(op.results, results):
            old.replace_all_uses_with(new)
        op.erase()
        changed = True
    refuse(f"cannot be written as {form.name}", problems)
    return changed


def _sweep(block: ir.Block) -> None:
    """Erase ops without users; all ops of the block are pure by now."""
    for view in reversed(list(block.operations)):
        op = view.operation
        if op.results and all(next(iter(r.uses), None) is None for r in op.results):
            op.erase()

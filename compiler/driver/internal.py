"""Turns unexpected exceptions into diagnostics: the failing part, the op, and what to do."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from gflow.dialects.mlir import ir
from gflow.dialects.program.environment import switch

from ..ir.diagnostics import Diagnostic, at_operation

#: environment variable; 1 shows tracebacks
DEBUG_VARIABLE = "GFLOW_DEBUG"


def debugging() -> bool:
    """Whether unexpected exceptions are raised unchanged."""
    return switch(DEBUG_VARIABLE, False)


def internal_error(error: Exception, where: str, root: ir.Operation) -> Diagnostic:
    """A diagnostic for an unexpected exception, at the op that was being processed.

    where: the part of the compiler, for example "pass 'gflow-fuse'".
    """
    op = blamed(error, root)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    name = "" if op is root else f" at '{op.name}'"
    found = at_operation(
        op,
        "error",
        f"internal error in {where}{name}: {type(error).__name__}: {error}{place}",
    )
    hint = (
        "this is a bug in gflow; set GFLOW_DEBUG=1 for the traceback, GFLOW_REPRODUCER_DIR=DIR or "
        "gflow-opt --mlir-pass-pipeline-crash-reproducer=FILE to keep the module it fails on"
    )
    found.notes.append(Diagnostic("note", hint))
    return found


def blamed(error: Exception, root: ir.Operation) -> ir.Operation:
    """The op to report: the one in a local variable of the innermost frame that has one, else `root`."""
    trace: TracebackType | None = error.__traceback__
    found = None
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            found = _operation(value) or found
        trace = trace.tb_next
    return found or root


def _operation(value: Any) -> ir.Operation | None:
    """The operation that a variable holds, if it holds one inside a function."""
    try:
        if isinstance(value, ir.OpView | ir.Operation):
            op = value.operation
        elif isinstance(getattr(value, "op", None), ir.OpView | ir.Operation):
            op = value.op.operation
        else:
            return None
        return None if op.name in ("builtin.module", "func.func") else op
    except Exception:
        # any object may be in a variable: an erased op, or one whose property `op` raises. Such an error must not
        # replace the one that is reported.
        return None

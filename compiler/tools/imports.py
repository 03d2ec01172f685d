"""`gflow-opt --import=FORM`: programs of other compilers, converted to the dialect before the first pass."""

from __future__ import annotations

from gflow.dialects.mlir import ir

from ..ir.diagnostics import Diagnostic
from .args import UsageError

FORMS = ("mlir", "stablehlo")


def check_import(form: str) -> None:
    """
    Raises:
        UsageError: there is no such form.
    """
    if form not in FORMS:
        raise UsageError(f"no form '{form}' to import (known: {', '.join(FORMS)})")


def prepare_import(form: str, context: ir.Context) -> None:
    """Load what the context needs to parse the form."""
    if form == "stablehlo":
        # start-up of gflow-opt: what is read loads what it needs
        from ..engines.stablehlo.read import prepare

        prepare(context)


def import_op(form: str, root: ir.Operation, diagnostics: list[Diagnostic]) -> ir.Operation | None:
    """Convert a parsed program to the dialect. Returns None and adds diagnostics if it cannot be converted."""
    if form == "mlir":
        return root
    # start-up of gflow-opt: what is read loads what it needs
    from ..engines.form import EngineError
    from ..engines.stablehlo.read import read_module

    if root.name != "builtin.module":
        diagnostics.append(
            Diagnostic("error", "a module is read from StableHLO", where="gflow-opt")
        )
        return None
    try:
        return read_module(root).operation
    except EngineError as error:
        diagnostics.append(Diagnostic("error", str(error), where="gflow-opt"))
        return None

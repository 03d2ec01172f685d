"""What `gflow-opt --import=FORM` reads: programs of other compilers, brought into the dialect before any pass."""

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
    """What the context needs before it parses the form."""
    if form == "stablehlo":
        # start-up of gflow-opt: what is read loads what it needs
        from ..engines.stablehlo.read import prepare

        prepare(context)


def import_op(form: str, root: ir.Operation, diagnostics: list[Diagnostic]) -> ir.Operation | None:
    """A parsed program in the dialect; None (and diagnostics) where it cannot be read."""
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

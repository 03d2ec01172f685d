"""`gflow-opt --import=FORM`: programs of other compilers, converted to the dialect before the first pass."""

from __future__ import annotations

from gflow.dialects.mlir import ir

from ..ir.diagnostics import Diagnostic
from .args import UsageError

FORMS = ("mlir", "stablehlo")


def check_import(form: str, shapes: str | None) -> None:
    """
    Raises:
        UsageError: there is no such form, or it has no shapes, or they are written otherwise.
    """
    if form not in FORMS:
        raise UsageError(f"no form '{form}' to import (known: {', '.join(FORMS)})")
    if shapes is not None and form != "stablehlo":
        raise UsageError("--import-shapes goes with --import=stablehlo")
    _shapes(shapes)


def _shapes(text: str | None) -> list[list[int]] | None:
    if text is None:
        return None
    try:
        return [
            [] if shape == "scalar" else [*map(_size, shape.split("x"))]
            for shape in text.split(",")
            if text
        ]
    except ValueError as error:
        raise UsageError(
            f"--import-shapes={text}: {str(error)!r} is no size; it takes a shape for each argument, as 8x4,4,scalar"
        ) from None


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def prepare_import(form: str, context: ir.Context) -> None:
    """Load what the context needs to parse the form."""
    if form == "stablehlo":
        # start-up of gflow-opt: what is read loads what it needs
        from ..engines.stablehlo.read import prepare

        prepare(context)


def import_op(
    form: str, shapes: str | None, root: ir.Operation, diagnostics: list[Diagnostic]
) -> ir.Operation | None:
    """Convert a parsed program to the dialect. Returns None and adds diagnostics if it cannot be converted."""
    if form == "mlir":
        return root
    # start-up of gflow-opt: what is read loads what it needs
    from ..engines.form import EngineError
    from ..engines.stablehlo.read import read_module
    from ..engines.stablehlo.refine import make_static

    problem = ""
    if root.name != "builtin.module":
        problem = "a module is read from StableHLO"
    else:
        given = _shapes(shapes)
        try:
            make_static(
                root, given, "the shapes of all its arguments, --import-shapes=8x4,4,scalar"
            )
            return read_module(root).operation
        except EngineError as error:
            problem = f"the program {error}"
    diagnostics.append(Diagnostic("error", problem, where="gflow-opt"))
    return None

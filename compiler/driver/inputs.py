"""Reads files, and parses MLIR text into a module or diagnostics."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from gflow.dialects import limits, marks
from gflow.dialects.assembly import AssemblyError, is_assembly, to_generic
from gflow.dialects.distribution import mesh
from gflow.dialects.mlir import ir

from ..ir.diagnostics import Diagnostic, at_operation, collect

_SINGLE_OP = "source must contain a single top-level operation"
#: the parser's remark on resources without a reader; gflow reads reproducers itself
_REPRODUCER_UNREAD = "ignoring unknown external resources for 'mlir_reproducer'"


class InputError(Exception):
    """The input or output cannot be used; the message is for the user."""


def read_file(name: str) -> str:
    """The text of a file, or of the standard input for "-".

    Raises:
        InputError: the file does not exist or is not text.
    """
    try:
        with (
            contextlib.nullcontext(sys.stdin.buffer)
            if name == "-"
            else Path(name).open("rb") as file
        ):
            data = file.read(limits.MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot open input file '{name}': {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"cannot open input file {name!r}: {error}") from None
    if len(data) > limits.MAX_BYTES:
        raise InputError(f"'{name}' has more than {limits.MAX_BYTES:,} bytes; no more is read")
    if data.startswith(b"ML\xefR"):
        raise InputError(f"'{name}' holds MLIR bytecode; only MLIR text is read")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        shown = "<stdin>" if name == "-" else name
        raise InputError(
            f"{shown}:{line}:{column}: error: the input is not UTF-8 text: "
            f"byte 0x{data[error.start]:02x}"
        ) from None


def check_writable(name: str) -> None:
    """Check that an output file can be written, before the work begins.

    Raises:
        InputError: the file cannot be written.
    """
    if name == "-":
        return
    path = Path(name)
    reason = ""
    if path.is_dir():
        reason = "Is a directory"
    elif not path.parent.is_dir():
        reason = "No such file or directory"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "Permission denied"
    if reason:
        raise InputError(f"cannot open output file '{name}': {reason}")


def parse(
    text: str, name: str, context: ir.Context, diagnostics: list[Diagnostic], implicit: bool = True
) -> ir.Operation | None:
    """Parse a text, in MLIR's generic form or the dialect's assembly. Returns the top-level op; None with diagnostics
    if the text is invalid.

    Args:
        name: the file's name, for diagnostics.
        implicit: wrap ops that are not in a module in one.
    """
    # a part of a file has as many empty lines in front as the file has lines before it
    given = text.lstrip("\n")
    before = len(text) - len(given)
    beyond = limits.problem(given)
    if beyond is not None:
        message, line, column = beyond
        diagnostics.append(Diagnostic("error", message, name, before + line, column))
        return None
    if is_assembly(given):
        try:
            text = "\n" * before + to_generic(given)
        except AssemblyError as error:
            diagnostics.append(Diagnostic("error", str(error), name, before + error.line, 1))
            return None
    if not text.endswith("\n"):
        text += "\n"  # the lexer reads beyond a string that has no end and no line after it
    root, found = _parse(text, name, context, implicit)
    diagnostics += [d for d in found if d.message != _REPRODUCER_UNREAD]
    if root is None:
        return None
    with context:
        found_wrong = (*marks.problems(root), *mesh.problems(root))
        wrong = [at_operation(op, "error", message) for message, op in found_wrong]
    diagnostics += wrong
    return None if wrong else root


def _parse(
    text: str, name: str, context: ir.Context, implicit: bool
) -> tuple[ir.Operation | None, list[Diagnostic]]:
    with context:
        with collect(context) as found:
            try:
                op = ir.Operation.parse(text, source_name=name)
            except ir.MLIRError:
                op = None
        if op is not None:
            if not implicit or op.operation.name == "builtin.module":
                return op.operation, found
            module = ir.Module.create(loc=ir.Location.file(name, 1, 1))
            module.body.append(op)
            return module.operation, found
        if not found:
            # the parser fails without a diagnostic if an op's name is missing
            found.append(Diagnostic("error", "the input is not valid MLIR", name, 1, 1))
        errors = [d for d in found if d.severity == "error"]
        several = len(errors) == 1 and errors[0].message.startswith(_SINGLE_OP)
        if not several or not implicit:
            return None, found
        # Several operations (or none): the implicit module. Places then read "-".
        with collect(context) as found:
            try:
                return ir.Module.parse(text).operation, found
            except ir.MLIRError:
                return None, found

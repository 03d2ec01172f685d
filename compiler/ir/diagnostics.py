"""Diagnostics as plain data: collected from an MLIR context, printed as `mlir-opt` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gflow.dialects.assembly import op_to_assembly
from gflow.dialects.mlir import ir

_CURRENT = "see current operation: "
#: Lines longer than this are shown cut: a constant may fill megabytes.
_SHOWN_COLUMNS = 2000


@dataclass
class Diagnostic:
    """A message and its location. `line` is 0 if the location is unknown.

    where: the location as text, for locations without a file.
    """

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    where: str = "loc(unknown)"
    notes: list[Diagnostic] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}" if self.line else self.where
        return f"{head}: {self.severity}: {self.message}"


def file_line_column(location: ir.Location, depth: int = 0) -> tuple[str, int, int] | None:
    """The first place in a file that a location holds, if any."""
    if depth > 50:
        return None
    if isinstance(location, ir.FileLineColLoc):
        name = location.filename
        return getattr(name, "value", name), location.start_line, location.start_col
    inner: list[ir.Location] = []
    if isinstance(location, ir.NameLoc):
        inner = [location.child_loc]
    elif isinstance(location, ir.CallSiteLoc):
        inner = [location.callee, location.caller]
    elif isinstance(location, ir.FusedLoc):
        inner = list(location.locations)
    return next(filter(None, (file_line_column(part, depth + 1) for part in inner)), None)


def _readable(message: str) -> str:
    """A message of MLIR's, with the op that it ends with in assembly."""
    head, _, op = message.partition(_CURRENT)
    return f"{_CURRENT}{op_to_assembly(op)}" if op and not head else message


def from_mlir(diagnostic: ir.Diagnostic) -> Diagnostic:
    """A diagnostic as plain data. MLIR's own object is valid only while its handler runs."""
    place = file_line_column(diagnostic.location)
    file, line, column = place or ("", 0, 0)
    return Diagnostic(
        severity=diagnostic.severity.name.lower(),
        message=_readable(diagnostic.message),
        file=file,
        line=line,
        column=column,
        where=str(diagnostic.location),
        notes=[from_mlir(note) for note in diagnostic.notes],
    )


def at_operation(op: ir.Operation, severity: str, message: str) -> Diagnostic:
    """A diagnostic of our own at an operation's location."""
    file, line, column = file_line_column(op.location) or ("", 0, 0)
    return Diagnostic(severity, message, file, line, column, str(op.location))


@contextmanager
def collect(
    context: ir.Context, into: list[Diagnostic] | None = None
) -> Iterator[list[Diagnostic]]:
    """Every diagnostic that the context emits inside the `with` block, added to `into` if given."""
    found: list[Diagnostic] = [] if into is None else into

    def handler(diagnostic: ir.Diagnostic) -> bool:
        found.append(from_mlir(diagnostic))
        return True

    before = context.emit_error_diagnostics
    context.emit_error_diagnostics = True
    attached = context.attach_diagnostic_handler(handler)
    try:
        yield found
    finally:
        attached.detach()
        context.emit_error_diagnostics = before


class Sources:
    """The lines of the files that diagnostics point into."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        """Register `text` as the content of `name`; the file need not exist."""
        self._lines[name] = text.split("\n")

    def line(self, name: str, number: int) -> str | None:
        """Line `number`, counted from 1; None where there is none."""
        if name not in self._lines:
            try:
                text = Path(name).read_text(encoding="utf-8", errors="replace")
            except (OSError, ValueError):
                text = ""
            self.add(name, text)
        lines = self._lines[name]
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else None

    def show(self, diagnostic: Diagnostic) -> str:
        """`file:line:col: error: message`, the source line and a caret; then the notes."""
        if diagnostic.line:
            head = f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}"
        elif diagnostic.where == "loc(unknown)":
            head = "<unknown>:0" if diagnostic.severity != "note" else "gflow-opt"
        elif diagnostic.file:
            head = f"{diagnostic.file}:0:0"
        else:
            head = diagnostic.where
        parts = [f"{head}: {diagnostic.severity}: {diagnostic.message}"]
        text = self.line(diagnostic.file, diagnostic.line) if diagnostic.line else None
        if text is not None and diagnostic.column < _SHOWN_COLUMNS:
            column = max(diagnostic.column - 1, 0)
            before = text[:column].expandtabs(8)
            parts.append(text[:_SHOWN_COLUMNS].expandtabs(8))
            parts.append(" " * len(before) + "^")
        parts += [self.show(note) for note in diagnostic.notes]
        return "\n".join(parts)

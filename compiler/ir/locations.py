"""Where ops come from: phase and module of the author's program, file and line."""

from __future__ import annotations

from typing import NamedTuple

from gflow.dialects.mlir import ir

from .diagnostics import file_line_column

_DEPTH = 50


class Source(NamedTuple):
    """phase: "forward", "backward", "optimizer" or "". module: dotted path, "" for none.

    file, line: of the author's program; "" and 0 where they are not known.
    """

    phase: str
    module: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line as `file:line`; "" where they are not known."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def group(self) -> str:
        """Phase and module as the location spells them: "forward:model.layer1"."""
        return f"{self.phase}:{self.module}" if self.phase else self.module

    def __str__(self) -> str:
        return " ".join(filter(None, (self.group.strip(":"), self.place)))


def source_of(op: ir.Operation) -> Source:
    """Where an op comes from, as its location says; of a fused location the first that says it."""
    name = _name(op.location)
    phase, colon, module = name.partition(":")
    if not colon:
        phase, module = "", name
    file, line, _ = file_line_column(op.location) or ("", 0, 0)
    return Source(phase, module, file, line)


def _name(location: ir.Location, depth: int = 0) -> str:
    if depth > _DEPTH:
        return ""
    if isinstance(location, ir.NameLoc):
        text = location.name_str
        return text if isinstance(text, str) else str(text)
    if isinstance(location, ir.FusedLoc):
        return next(filter(None, (_name(part, depth + 1) for part in location.locations)), "")
    if isinstance(location, ir.CallSiteLoc):
        return _name(location.callee, depth + 1)
    return ""

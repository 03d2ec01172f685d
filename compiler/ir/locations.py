"""Source locations of ops: phase and module of the author's program, file and line."""

from __future__ import annotations

from typing import NamedTuple

from gflow.dialects.mlir import ir

from .diagnostics import file_line_column

_DEPTH = 50


class Source(NamedTuple):
    """A source location. phase: "forward", "backward", "optimizer" or "". module: the dotted path, or "".

    file, line: in the author's program; "" and 0 if unknown.
    """

    phase: str
    module: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line as `file:line`; "" if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def group(self) -> str:
        """Phase and module as in the location: "forward:model.layer1"."""
        return f"{self.phase}:{self.module}" if self.phase else self.module

    def __str__(self) -> str:
        return " ".join(filter(None, (self.group.strip(":"), self.place)))


def source_of(op: ir.Operation) -> Source:
    """The source of an op, from its location. Of a fused location, the first part that has one."""
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

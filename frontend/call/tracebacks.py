"""Tracebacks of errors that a call of a graph raises: the author's frames, and one of gflow's.

An error keeps its type, its text and its causes. Frames inside of gflow and PyTorch are removed if the error came
through the author's code, is gflow's own (a `GraphError`), or was raised by a check of values in a program, which
names the line. Other errors, inside of gflow, keep all frames, and so does every error with `GFLOW_TRACEBACKS=full`.
"""

from __future__ import annotations

from types import TracebackType

from gflow.dialects.program.environment import chosen
from gflow.errors import GraphError
from gflow.tracing.context.location import is_user_code, owner_of

#: the beginning of a note with which a program gives the location of an error in the author's code
_PLACE = "\n  at "


def without_internals(error: BaseException) -> BaseException:
    """The error, to be raised by the one frame of gflow's that remains."""
    if not isinstance(error, Exception) or chosen("GFLOW_TRACEBACKS", "full"):
        return error
    if not _is_explained(error):
        return error
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frames = _frames(one.__traceback__)
        kept = [f for f in frames if is_user_code(f.tb_frame.f_code)]
        if one is error or kept or _is_of_pytorch(frames):
            one.__traceback__ = _chained(kept)
        one = one.__cause__ or one.__context__
    return error


def _is_explained(error: Exception) -> bool:
    """Whether the author can understand an error without gflow's internal frames."""
    frames = _frames(error.__traceback__)[1:]
    through_user = any(is_user_code(f.tb_frame.f_code) for f in frames)
    return through_user or isinstance(error, GraphError) or _PLACE in str(error)


def _is_of_pytorch(frames: list[TracebackType]) -> bool:
    """Whether an error was raised in PyTorch's own files, and not by a defect of gflow."""
    return bool(frames) and owner_of(frames[-1].tb_frame.f_code.co_filename) == "torch"


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _chained(frames: list[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for f in reversed(frames):
        trace = TracebackType(trace, f.tb_frame, f.tb_lasti, f.tb_lineno)
    return trace

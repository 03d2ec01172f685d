"""Reports warnings of PyTorch at the author's line, while a graph is traced."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .location import is_user_code, owner_of, user_frame
from .threads import here_only, replaced


@contextlib.contextmanager
def warnings_at_user_lines() -> Iterator[None]:
    """Within, warnings of library code report the innermost line of the author's.

    `warnings.warn` is replaced for Python code. Warnings of PyTorch's C++ code carry the line of the innermost Python
    frame, so `warnings.showwarning` corrects them."""
    original, shown = warnings.warn, warnings.showwarning

    def warn(
        message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **more: Any
    ) -> None:
        caller: FrameType | None = sys._getframe(2)  # above the wrapper that checks the thread
        frame = caller
        while frame is not None and not is_user_code(frame.f_code):
            frame = frame.f_back
        if frame is None or frame is caller:
            original(message, category, stacklevel + 2, *rest, **more)
            return
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        warnings.warn_explicit(
            message,
            kind,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )

    def show(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if owner_of(filename) != "user":
            filename, lineno = user_frame()
        shown(message, category, filename, lineno, file, line)

    with replaced(
        (warnings, "warn", here_only(original, warn)),
        (warnings, "showwarning", here_only(shown, show)),
    ):
        yield

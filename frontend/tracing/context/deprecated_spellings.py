"""Spellings of OneFlow's earlier documents: they work, and each warns once."""

from __future__ import annotations

import warnings

from gflow.tracing.context.location import user_frame

_warned: set[str] = set()


def warn_older(name: str, newer: str) -> None:
    """Warn of an older spelling at the user's line, once in a process."""
    if name not in _warned:
        _warned.add(name)
        file, line = user_frame(2)
        text = f"{name} is the older spelling of {newer}, and does the same"
        warnings.warn_explicit(text, FutureWarning, file, line)

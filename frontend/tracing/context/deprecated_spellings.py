"""Deprecated names of OneFlow's earlier versions. They work, and each warns once."""

from __future__ import annotations

import warnings

from gflow.tracing.context.location import user_frame

_warned: set[str] = set()


def warn_older(name: str, newer: str) -> None:
    """Warn of a deprecated name at the user's line, once in a process."""
    if name not in _warned:
        _warned.add(name)
        file, line = user_frame(2)
        text = f"{name} is deprecated, use {newer} instead; both have the same effect"
        warnings.warn_explicit(text, FutureWarning, file, line)

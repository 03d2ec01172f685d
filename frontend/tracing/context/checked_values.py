"""Checks of values that authors give to switches."""

from __future__ import annotations

from gflow.errors import GraphError

from .location import here


def count(name: str, value: object, least: int = 1) -> int:
    """The value as an integer.

    Raises:
        GraphError: it is no integer, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        call = name if name.endswith(")") else f"{name}()"
        raise GraphError(f"{here()}: {call} takes an int, {least} or more; got {value!r}")
    return value


def flag(name: str, mode: object) -> bool:
    """The value as a bool.

    Raises:
        GraphError: it is no bool.
    """
    if not isinstance(mode, bool):
        raise GraphError(f"{here()}: {name}() takes True or False; got {mode!r}")
    return mode

"""Environment variables that are switches. A value that says nothing is warned of once."""

from __future__ import annotations

import logging
import os
from functools import cache

_log = logging.getLogger("gflow")
#: words for a switch that is on, and for one that is off
ON, OFF = ("1", "on", "true", "yes"), ("0", "off", "false", "no")


def switch(name: str, default: bool) -> bool:
    """Whether a switch is on: 1 or 0, or another word for them."""
    given = os.environ.get(name, "").lower()
    if given in ON or given in OFF:
        return given in ON
    if given:
        _say_once(f"{name}={given!r} is neither 1 nor 0: {int(default)} is taken")
    return default


def chosen(name: str, *known: str) -> str:
    """The value of a variable that has one of several, or none ("")."""
    given = os.environ.get(name, "")
    if given and given not in known:
        _say_once(f"{name}={given!r} is not known, and ignored; known: {', '.join(known)}")
        return ""
    return given


@cache
def _say_once(message: str) -> None:
    _log.warning(message)

"""Work counted in calls: what a time says, but the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls(function: Callable[[], object]) -> int:
    """How many Python and C functions run."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def lines(function: Callable[[], object]) -> int:
    """How many lines of Python run, each turn of a loop anew: also a loop that calls nothing counts."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        function()
    finally:
        sys.settrace(before)
    return count

"""Whether a program printed what a page says."""

from __future__ import annotations

import math
import re

_PIECES = re.compile(
    r"(?P<any>…|\.\.\.)|(?P<space>\s+)|(?P<number>(?<![\w.])-?\d+\.\d+(?:e[-+]?\d+)?(?![\w.]))|(?P<text>.)",
    re.DOTALL,
)
_NUMBER = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"


def difference(expected: str, printed: str) -> str | None:
    """None if `expected` is a part of `printed`, from a line's beginning on to a line's end."""
    lines = [line for line in expected.splitlines() if line.strip()]
    pattern = "\n".join(_pattern(line) for line in lines)
    pattern = re.sub(r"\n?\(\?s:\.\*\?\)\n", r"(?s:.*?)\n", pattern)
    text = "\n".join(line.strip() for line in printed.splitlines() if line.strip())
    wanted = [float(m["number"]) for line in lines for m in _PIECES.finditer(line) if m["number"]]
    for found in re.finditer(rf"^{pattern}$", text, re.MULTILINE):
        if all(math.isclose(a, float(b), rel_tol=2e-4) for a, b in zip(wanted, found.groups())):
            return None
    return f"expected\n{expected.rstrip()}\n-- in what was printed:\n{printed.rstrip()}"


def _pattern(line: str) -> str:
    """One line as a regular expression, with a group for each fraction."""
    if line.strip() in ("…", "..."):
        return "(?s:.*?)"
    parts = []
    for piece in _PIECES.finditer(line.strip()):
        if piece["any"]:
            parts.append(".*?")
        elif piece["space"]:
            parts.append(r"\s+")
        elif piece["number"]:
            parts.append(f"({_NUMBER})")
        else:
            parts.append(re.escape(piece["text"]))
    return "".join(parts)

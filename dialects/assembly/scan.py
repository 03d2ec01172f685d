"""Brackets, strings and lists in MLIR text."""

from __future__ import annotations

import re

from ..limits import STRING

_CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSING = frozenset(_CLOSER.values())
#: what decides where a group ends: strings, arrows, comparisons and brackets. A string without an end ends with the
#: line: looked for from each of its quotes, its end would take quadratic time
_MARK = re.compile(STRING + r'"?|->|>=|<=|[()\[\]{}<>]')
_MARK_OR_COMMA = re.compile(STRING + r'"?|->|>=|<=|[()\[\]{}<>,]')


class ScanError(ValueError):
    """Brackets do not match."""


def end_of_group(text: str, start: int) -> int:
    """The place behind the bracket that closes the one at `start`.

    Raises:
        ScanError: there is none.
    """
    closers: list[str] = []
    for match in _MARK.finditer(text, start):
        token = match.group()
        if token in _CLOSER:
            closers.append(_CLOSER[token])
        elif token in ")]}>":
            if not closers or closers.pop() != token:
                raise ScanError("brackets do not match")
            if not closers:
                return match.end()
    raise ScanError("a bracket is not closed")


def depth(line: str) -> int:
    """How many more brackets a line opens than it closes."""
    tokens = [match.group() for match in _MARK.finditer(line)]
    return sum(t in _CLOSER for t in tokens) - sum(t in _CLOSING for t in tokens)


def split_list(text: str) -> list[str]:
    """The items between the commas of a list, without blanks around them; commas within brackets separate nothing.

    Raises:
        ScanError: brackets do not match.
    """
    items, start, depth = [], 0, 0
    for match in _MARK_OR_COMMA.finditer(text):
        token = match.group()
        if token == ",":
            if depth == 0:
                items.append(text[start : match.start()].strip())
                start = match.end()
        elif token in _CLOSER:
            depth += 1
        elif token in ")]}>":
            depth -= 1
            if depth < 0:
                raise ScanError("brackets do not match")
    if depth:
        raise ScanError("a bracket is not closed")
    last = text[start:].strip()
    return [*items, last] if items or last else []


def find_outside(text: str, what: str) -> int:
    """Where `what` first stands outside of brackets and strings; -1 if nowhere."""
    depth = 0
    pattern = re.compile(_MARK.pattern + "|" + re.escape(what))
    for match in pattern.finditer(text):
        token = match.group()
        if token == what and depth == 0:
            return match.start()
        if token in _CLOSER:
            depth += 1
        elif token in ")]}>":
            depth -= 1
    return -1

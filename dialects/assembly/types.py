"""Tensor types and lists of them, long (`tensor<5x3xf32>`) and short (`5x3xf32`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from .scan import ScanError, split_list

_SHORT = r"(?:(?:\d+|\?)x)*(?:[a-z]+\d+(?:[A-Z]\w*)?|index|complex<[a-z]+\d+>)"
_IS_SHORT = re.compile(rf"{_SHORT}\Z")
_LONG = re.compile(rf"tensor<({_SHORT})>\Z")


def short(ty: str) -> str:
    """`5x3xf32` for `tensor<5x3xf32>`.

    Raises:
        ScanError: the type has no short form: it is no tensor, or has an encoding.
    """
    match = _LONG.match(ty)
    if match is None:
        raise ScanError(f"{ty} has no short form")
    return match[1]


def long(ty: str) -> str:
    """`tensor<5x3xf32>` for `5x3xf32`.

    Raises:
        ScanError: `ty` is no short form.
    """
    if _IS_SHORT.match(ty) is None:
        raise ScanError(f"expected a type such as 5x3xf32, found '{ty}'")
    return f"tensor<{ty}>"


def type_list(text: str) -> list[str]:
    """The types of `(A, B)` or of the single type `A`."""
    text = text.strip()
    return split_list(text[1:-1]) if text.startswith("(") and text.endswith(")") else [text]


def shown(types: Sequence[str]) -> str:
    """A list of types: in parentheses unless it is one."""
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def runs(types: Sequence[str], groups: int) -> list[int]:
    """The lengths of the runs of equal types, filled up with zeros to `groups`.

    Raises:
        ScanError: there are more runs than that.
    """
    found = [len(list(run)) for _, run in groupby(types)]
    if len(found) > groups:
        raise ScanError(f"{len(found)} runs of equal types, at most {groups} are possible")
    return found + [0] * (groups - len(found))

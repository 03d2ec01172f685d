"""Attributes of an op: as MLIR writes them, and shorter where the op's table says of what kind they are.

    i64     `3 : i64`               `3`
    f64     `1.000000e-05 : f64`    `1.000000e-05`
    i64[]   `array<i64: 1, 0>`      `[1, 0]`

Attributes that the table does not declare are written as MLIR writes them.
"""

from __future__ import annotations

import re

from ..limits import STRING
from ..opdef import OpDef
from .scan import ScanError, split_list

_KEY = re.compile(rf'([A-Za-z_][\w$.]*|{STRING}")\s*(?:=\s*)?')
_ARRAY = re.compile(r"array<i64(?:: ([-\d, ]+))?>\Z")
_NUMBER = {"i64": re.compile(r"-?\d+\Z"), "f64": re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?\Z")}
_INTEGERS = re.compile(r"-?\d+(?:, *-?\d+)*\Z")

Entries = dict[str, str]


def read(text: str) -> Entries:
    """The entries of `{a = 1, b}`; what stands for a unit attribute is "".

    Raises:
        ScanError: it is no dictionary.
    """
    if not (text.startswith("{") and text.endswith("}")):
        raise ScanError("expected attributes in braces")
    found: Entries = {}
    for item in split_list(text[1:-1]):
        match = _KEY.match(item)
        if match is None or match[1] in found:
            raise ScanError(f"expected 'name = value', found '{item}'")
        found[match[1]] = item[match.end() :].strip()
    return found


def write(entries: Entries) -> str:
    """`{a = 1, b}`; "" where there are none."""
    if not entries:
        return ""
    return "{" + ", ".join(f"{k} = {v}" if v else k for k, v in entries.items()) + "}"


def shorter(definition: OpDef, name: str, value: str) -> str:
    """An attribute as the assembly has it."""
    kind = definition.attrs[name].kind if name in definition.attrs else ""
    if kind in _NUMBER:
        number, _, ty = value.partition(" : ")
        return number if ty == kind and _NUMBER[kind].match(number) else value
    if kind == "i64[]":
        match = _ARRAY.match(value)
        return f"[{match[1] or ''}]" if match else value
    return value


def longer(definition: OpDef, name: str, value: str) -> str:
    """An attribute as MLIR reads it."""
    kind = definition.attrs[name].kind if name in definition.attrs else ""
    if kind in _NUMBER and _NUMBER[kind].match(value):
        return f"{value} : {kind}"
    if kind == "i64[]" and value.startswith("[") and value.endswith("]"):
        inside = value[1:-1].strip()
        if not inside:
            return "array<i64>"
        return f"array<i64: {inside}>" if _INTEGERS.match(inside) else value
    return value

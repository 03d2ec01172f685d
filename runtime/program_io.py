"""A `Program` as bytes and back, without pickle: JSON, then the constants' bytes.

    length of the JSON (8 bytes) · JSON · constants, one after the other

Dataclasses and named tuples of `gflow.dialects.program` become lists that start with their name;
reading makes only these.
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields, is_dataclass
from typing import Any

from gflow.dialects import program as program_types
from gflow.dialects.program import Program
from gflow.dialects.types import TensorType

_LENGTH = struct.Struct("<Q")


class ProgramError(ValueError):
    """The bytes are not those of a program."""


def _known() -> dict[str, type]:
    found: dict[str, type] = {"TensorType": TensorType}
    for name, value in vars(program_types).items():
        named_tuple = isinstance(value, type) and issubclass(value, tuple)
        if isinstance(value, type) and (is_dataclass(value) or named_tuple):
            found[name] = value
    return found


_KNOWN = _known()


def to_bytes(program: Program) -> bytes:
    """All of a program."""
    values = {f.name: getattr(program, f.name) for f in fields(program) if f.name != "constants"}
    values["constants"] = [len(c) for c in program.constants]
    text = json.dumps({name: encode(v) for name, v in values.items()}, separators=(",", ":"))
    encoded = text.encode()
    return b"".join([_LENGTH.pack(len(encoded)), encoded, *program.constants])


def from_bytes(data: bytes) -> Program:
    """The program that `to_bytes` wrote.

    Raises:
        ProgramError: the bytes are damaged or of another version.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        found = json.loads(data[_LENGTH.size : start])
        sizes = decode(found.pop("constants"))
        values = {name: decode(v) for name, v in found.items()}
        constants = []
        for size in sizes:
            constants.append(data[start : start + size])
            start += size
        if start != len(data):
            raise ProgramError(f"{len(data)} bytes, where {start} were expected")
        return Program(**values, constants=constants)
    except (struct.error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProgramError(f"not a program: {error}") from None


def encode(value: Any) -> Any:
    """A part of a program as JSON."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [type(value).__name__, *map(encode, value)]
    if is_dataclass(value):
        return [type(value).__name__, *(encode(getattr(value, f.name)) for f in fields(value))]
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "", *map(encode, value)]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"a program holds {type(value).__name__}")


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    kind, *items = value
    decoded = [decode(item) if isinstance(item, (list, dict)) else item for item in items]
    if kind == "":
        return tuple(decoded)
    return decoded if kind == "list" else _KNOWN[kind](*decoded)

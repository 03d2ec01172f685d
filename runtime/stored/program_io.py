"""A `Program` as bytes and back: JSON, then the bytes of its constants. Programs are checked when they are read, or
before they are written where a signature tells that they are unchanged.

length of the JSON (8 bytes) · JSON · constants, one after the other
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from typing import Any

from gflow.dialects.program import Program
from gflow.dialects.program.form import ProgramError, decode, encode

__all__ = ["ProgramError", "from_bytes", "from_values", "to_bytes"]

_LENGTH = struct.Struct("<Q")


def to_bytes(program: Program) -> bytes:
    """All of a program."""
    values = {f.name: getattr(program, f.name) for f in fields(program) if f.name != "constants"}
    values["constants"] = [len(c) for c in program.constants]
    text = json.dumps({name: encode(v) for name, v in values.items()}, separators=(",", ":"))
    encoded = text.encode()
    return b"".join([_LENGTH.pack(len(encoded)), encoded, *program.constants])


def from_bytes(data: bytes, checked: bool = False) -> Program:
    """The program that `to_bytes` wrote.

    checked: whether it was checked before it was written, and the bytes are signed.

    Raises:
        ProgramError: the bytes are damaged or of another version, or the program is not whole.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        found = json.loads(data[_LENGTH.size : start])
        sizes = decode(found.pop("constants"))
        constants = []
        for size in sizes:
            if type(size) is not int or not 0 <= size <= len(data) - start:
                raise ProgramError(f"a constant of {size} bytes, {len(data) - start} are left")
            constants.append(data[start : start + size])
            start += size
        if start != len(data):
            raise ProgramError(f"{len(data)} bytes, where {start} were expected")
    except (
        struct.error,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ProgramError(f"not a program: {error}") from None
    return from_values(found, checked, constants=constants)


def from_values(found: dict[str, Any], checked: bool = False, **others: Any) -> Program:
    """A program from its fields as JSON, and `others` as they are. checked: see `from_bytes`.

    Raises:
        ProgramError: a field is missing, unknown or of another kind, or the program is not whole.
    """
    try:
        values = {name: decode(v) for name, v in found.items()} | others
        names = {f.name for f in fields(Program)}
        if values.keys() != names:
            odd = ", ".join(sorted(names ^ values.keys()))
            raise ProgramError(f"missing or unknown: {odd}; it may be of another version of gflow")
        program = Program(**values)
        if not checked:
            # start-up: the programs of the cache are checked before they are written
            from .program_check import check_program

            check_program(program)
    except ProgramError as error:
        raise ProgramError(f"not a program: {error}") from None
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # fields of any kind and depth: what reads them meets these first
        raise ProgramError(f"not a program: {type(error).__name__}: {error}") from None
    return program

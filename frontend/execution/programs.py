"""Programs as bytes, for the cache and for other ranks."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from gflow.runtime.stored import program_io

if TYPE_CHECKING:
    from gflow.compiler import Programs

_LENGTHS = struct.Struct("<QQ")


def to_bytes(programs: Programs) -> bytes:
    """The program as bytes; followed by the prologue, if there is one, and the arguments that both read."""
    main = program_io.to_bytes(programs.main)
    if programs.prologue is None:
        return _LENGTHS.pack(len(main), 0) + main
    told = json.dumps([programs.given, programs.reads]).encode()
    prologue = program_io.to_bytes(programs.prologue)
    return _LENGTHS.pack(len(main), len(told)) + main + told + prologue


def from_bytes(data: bytes) -> Programs:
    """The inverse of `to_bytes`.

    Raises:
        ProgramError: the bytes are damaged or of another version, or a program is incomplete.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import Programs

    try:
        length, told = _LENGTHS.unpack_from(data)
    except struct.error as error:
        raise program_io.ProgramError(f"not a program: {error}") from None
    start = _LENGTHS.size + length
    main = program_io.from_bytes(data[_LENGTHS.size : start])
    if not told:
        return Programs(main)
    prologue = program_io.from_bytes(data[start + told :])
    try:
        given, reads = (tuple(map(int, n)) for n in json.loads(data[start : start + told]))
    except (ValueError, TypeError) as error:
        raise program_io.ProgramError(f"not the arguments of programs: {error}") from None
    counts = len(main.arguments) == len(given) and len(prologue.arguments) == len(reads)
    if not counts or min(reads, default=0) < 0 or min(given, default=0) < -len(prologue.results):
        raise program_io.ProgramError("the arguments of programs do not fit")
    return Programs(main, prologue, given, reads)

"""Programs as bytes, for the cache and for other ranks."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from gflow.runtime.stored import program_io

if TYPE_CHECKING:
    from gflow.compiler import Programs

#: lengths of the program and of the numbers of arguments, and whether a seed is an argument
_HEAD = struct.Struct("<QQ?")


def to_bytes(programs: Programs, takes_rng: bool) -> bytes:
    """The program as bytes; followed by the prologue, if there is one, and the arguments that both read.

    takes_rng: whether they take a seed as the last argument.
    """
    main = program_io.to_bytes(programs.main)
    if programs.prologue is None:
        return _HEAD.pack(len(main), 0, takes_rng) + main
    told = json.dumps([programs.given, programs.reads]).encode()
    prologue = program_io.to_bytes(programs.prologue)
    return _HEAD.pack(len(main), len(told), takes_rng) + main + told + prologue


def check(programs: Programs) -> None:
    """Check programs before they are stored.

    Raises:
        ProgramError: the compiler has made a malformed program.
    """
    # start-up: a stored program was checked before
    from gflow.runtime.stored.program_check import check_contents, check_types

    for program in (programs.main, programs.prologue):
        if program is not None:
            check_types(program)
            check_contents(program)


def from_bytes(data: bytes, checked: bool = False) -> tuple[Programs, bool]:
    """The inverse of `to_bytes`: the programs, and whether they take a seed.

    checked: whether they were checked before they were written, and the bytes are signed.

    Raises:
        ProgramError: the bytes are damaged or of another version, or a program is incomplete.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import Programs

    try:
        length, told, takes_rng = _HEAD.unpack_from(data)
    except struct.error as error:
        raise program_io.ProgramError(f"not a program: {error}") from None
    start = _HEAD.size + length
    main = program_io.from_bytes(data[_HEAD.size : start], checked)
    if not told:
        return Programs(main), takes_rng
    prologue = program_io.from_bytes(data[start + told :], checked)
    try:
        given, reads = (tuple(map(int, n)) for n in json.loads(data[start : start + told]))
    except (ValueError, TypeError) as error:
        raise program_io.ProgramError(f"not the arguments of programs: {error}") from None
    counts = len(main.arguments) == len(given) and len(prologue.arguments) == len(reads)
    if not counts or min(reads, default=0) < 0 or min(given, default=0) < -len(prologue.results):
        raise program_io.ProgramError("the arguments of programs do not fit")
    return Programs(main, prologue, given, reads), takes_rng

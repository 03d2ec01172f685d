"""Errors that a run finds in values: an index out of range, a singular matrix.

Kernels report them in a few words of memory that the host can read (`Place("status", 0, …)`): the number of the first
failed check, counted from 1, the value that it found, and the number of the call. Errors of ATen steps get the same
line with their source in the author's program.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

import torch

from gflow.dialects.program import Check

#: words of the report: the check (0: none failed), what it found, and, on a device, the call
FAILED, FOUND, CALL = range(3)
REPORT_WORDS: Final = 3


class OtherBranch(RuntimeError):
    """A condition has another truth than the one that the program is for."""


#: exceptions by the names that checks give them
ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "AssertionError": AssertionError,
    "LinAlgError": torch.linalg.LinAlgError,
    "OtherBranch": OtherBranch,
}
#: `loc("forward:encoder.embed"("/home/me/model.py":12:0))`, as MLIR prints it
_NAMED = re.compile(r'"([^":]*):([^"]*)"\("([^"]*)":(\d+)')
_FILE = re.compile(r'"([^"]+)":(\d+):\d+')


def where(label: str) -> str:
    """The source of a step as one line: module, phase, file and line; "" if its label has none."""
    named = _NAMED.search(label)
    if named is not None:
        phase, module, file, line = named.groups()
        of = f"{phase} of {module}" if module else phase
        return f"  at {file}:{line} ({of})"
    plain = _FILE.search(label)
    return f"  at {plain[1]}:{plain[2]}" if plain is not None else ""


def explain(error: Exception, place: str) -> None:
    """Add a line to an error's message, once. Its type and attributes stay."""
    text = str(error.args[0]) if error.args else ""
    if place and place not in text:
        error.args = (f"{text}\n{place}", *error.args[1:])


def raise_failed(check: Check, found: int, note: str = "") -> NoReturn:
    """Raise the error of a failed check.

    found: the offending value. note: an additional line.
    """
    lines = [check.message.replace("{}", str(found)), where(check.label), note]
    raise ERRORS[check.error]("\n".join(filter(None, lines)))

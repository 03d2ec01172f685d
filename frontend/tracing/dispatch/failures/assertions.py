"""Converts conditions on tensors' values that raise an error into checks of the program: `assert`, `if …: raise …`,
and functions of PyTorch with this effect.

Python evaluates the truth of a tensor for a jump. If one branch of the jump only raises an error that a check can
raise, the trace continues with the other branch, and the program checks the tensor before it updates anything.
"""

from __future__ import annotations

import builtins
import dis
import functools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphTraceError
from gflow.runtime.failures import ERRORS

from ...context.location import user_frame

_HERE = str(
    Path(__file__).parents[1]
)  # the folder `dispatch`, which PyTorch calls into while tracing


@record
class _Raising:
    """A jump that raises an error if a tensor's truth is not `needed`.

    Args:
        error: the name of the error among the globals.
        how, value: the operation and value of the error's message; "" if there are several.
    """

    needed: bool
    error: str
    how: str
    value: Any


def fail_if(bad: torch.Tensor, error: str, message: str) -> None:
    """Record a check: the run ends with an error if an element of `bad` is true."""
    with torch.no_grad():
        torch.ops.gflow.fail_if(bad, error, message)


def asserted(condition: torch.Tensor) -> bool | None:
    """The truth that a jump needs to continue, if it raises otherwise; the program checks it then. None if Python
    evaluates the truth of the traced tensor for another reason."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    found = None if frame is None else _raising(frame.f_code, frame.f_lasti)
    if frame is None or found is None or condition.numel() != 1:
        return None
    kind = frame.f_globals.get(found.error, getattr(builtins, found.error, None))
    name = getattr(kind, "__name__", "")
    if kind is None or ERRORS.get(name) is not kind:
        return None
    held = condition if condition.dtype == torch.bool else condition != 0
    fail_if(~held if found.needed else held, name, _text(frame, found))
    return found.needed


@functools.cache
def _raising(code: CodeType, at: int) -> _Raising | None:
    """The jump at bytecode offset `at`, if one of its branches raises."""
    skipped = ("CACHE", "EXTENDED_ARG", "NOT_TAKEN", "PRECALL", "PUSH_NULL")
    instructions = [i for i in dis.get_instructions(code) if i.opname not in skipped]
    places = {i.offset: n for n, i in enumerate(instructions)}
    n = places.get(at)
    if n is not None and instructions[n].opname == "TO_BOOL":
        n += 1
    if n is None or "JUMP" not in instructions[n].opname:
        return None
    jump = instructions[n]
    for needed, name in ((False, "IF_TRUE"), (True, "IF_FALSE")):
        if name not in jump.opname:
            continue
        # the target for that truth, and the target for the other
        for truth, to in ((not needed, places.get(jump.argval)), (needed, n + 1)):
            while to is not None and instructions[to].opname in ("POP_TOP", "JUMP_FORWARD"):
                ends = (
                    instructions[to].opname == "JUMP_FORWARD"
                )  # both instructions occur in chained comparisons
                to = places.get(instructions[to].argval) if ends else to + 1
            found = None if to is None else _block(instructions[to:])
            if found is not None:
                return _Raising(not truth, *found)
    return None


def _block(instructions: list[dis.Instruction]) -> tuple[str, str, Any] | None:
    """The error that a basic block raises, with the operation and value of its message; None if it raises none."""
    first = instructions[0]
    error = first.argval if first.opname == "LOAD_GLOBAL" else ""
    if first.opname == "LOAD_ASSERTION_ERROR" or (
        first.opname == "LOAD_COMMON_CONSTANT" and "AssertionError" in first.argrepr
    ):
        error = "AssertionError"
    message: list[dis.Instruction] = []
    for instruction in instructions[1:]:
        name = instruction.opname
        if name == "RAISE_VARARGS" and error:
            one = [i for i in message if not i.opname.startswith("CALL")]
            return (error, one[0].opname, one[0].argval) if len(one) == 1 else (error, "", None)
        if not name.startswith(
            ("LOAD", "CALL", "FORMAT", "BUILD", "BINARY", "KW_NAMES", "CONVERT")
        ):
            return None
        message.append(instruction)
    return None


def _text(frame: FrameType, found: _Raising) -> str:
    """The error's message; the source line if the message is computed, or missing."""
    if found.how == "LOAD_CONST":
        return str(found.value)
    if found.how.startswith("LOAD_FAST") and isinstance(frame.f_locals.get(found.value), str):
        return str(frame.f_locals[found.value])
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def check_tensor_all_with(
    error_type: Any, cond: Any, message: Callable[[], str] | None = None
) -> None:
    """`torch._check_tensor_all_with`; the original reads the values.

    Raises:
        TypeError: cond is no tensor of booleans.
        GraphTraceError: the program cannot raise an error of this type.
    """
    if not isinstance(cond, torch.Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype != torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    text = "Expected cond to be True, but got False" if message is None else str(message())
    name = error_type.__name__
    if ERRORS.get(name) is not error_type:
        file, line = user_frame(2)
        raise GraphTraceError(
            f"{file}:{line}: a check of a tensor's values in a graph raises {', '.join(ERRORS)}; got {error_type}"
        )
    fail_if(~cond, name, text)

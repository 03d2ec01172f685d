"""Disassembled machine code: instructions with their scheduling control fields, and loops.

    /*24c0*/  HGMMA.64x64x16.F32.BF16 R56, R100, gdesc[UR12].tnspB, R56 ;   /* 0x60e00000c6382df0 */
                                                                            /* 0x000fe20008701838 */

The upper half of an encoding holds, from bit 41 on: the stall count in cycles (4 bits), a yield hint (1), the write
barrier and the read barrier (3 bits each, 7 for none; there are six barriers), and a mask of barriers to wait for (6).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gflow.dialects.records import record

_LINE = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);"
    r"(?:\s*/\* 0x[0-9a-f]{16} \*/\s*/\* 0x([0-9a-f]{16}) \*/)?"
)
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_LABEL = re.compile(r"^(\.L_\w+):", re.M)
#: a barrier's number that means none
_NONE = 7


@record
class Instruction:
    """An instruction.

    predicate: its text, "" without one. kind: the first part of its name; modifiers: the other parts. operands: their
    text. stall: cycles until the warp may issue its next instruction. result, read: the barriers that it releases when
    its result is written and when its operands are read, or None. waits: the barriers that it waits for."""

    predicate: str
    kind: str
    modifiers: tuple[str, ...]
    operands: str
    stall: int = 1
    result: int | None = None
    read: int | None = None
    waits: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """The bytes that a thread accesses, for an access of memory."""
        for modifier in self.modifiers:
            if modifier in ("128", "64"):
                return int(modifier) // 8
            if modifier in ("U8", "S8", "U16", "S16"):
                return int(modifier[1:]) // 8
        return 4


@record
class Code:
    """Instructions in order, and the target of each branch by the branch's position."""

    instructions: tuple[Instruction, ...]
    branches: tuple[tuple[int, int], ...]

    def loops(self) -> list[tuple[int, int]]:
        """The first and last instruction of each innermost loop, in order. Spin-wait loops are left out."""
        found = [(to, at) for at, to in self.branches if to <= at]
        inner = [
            (a, b)
            for a, b in found
            if not any((c, d) != (a, b) and a <= c and d <= b for c, d in found)
        ]
        spins = {"SYNCS", "BRA", "NANOSLEEP", "NOP"}
        return sorted(
            (a, b)
            for a, b in inner
            if any(i.kind not in spins for i in self.instructions[a : b + 1])
        )

    def body(self, first: int, last: int) -> list[Instruction]:
        """The instructions that an iteration of a loop executes.

        If the loop has matrix products, a part without products that a branch can skip is left out: such parts belong
        to the first or last iteration (for example the store of a tile in a persistent kernel). Instructions whose
        predicate is never true are left out.
        """
        inside = self.instructions[first : last + 1]
        skipped: set[int] = set()
        if any(is_product(i) for i in inside):
            for at, to in self.branches:
                over = range(at + 1, to)
                conditional = self.instructions[at].predicate
                inner = first <= at < to <= last and conditional
                if inner and not any(is_product(self.instructions[n]) for n in over):
                    skipped.update(over)
        return [
            i
            for n, i in enumerate(inside, first)
            if n not in skipped and i.predicate != "!PT" and i.kind != "NOP"
        ]


def is_product(i: Instruction) -> bool:
    """Whether an instruction is a matrix product (MMA)."""
    return i.kind in ("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "DMMA")


def parsed(text: str) -> Code:
    """The instructions of a disassembled kernel, with or without encodings."""
    labels: dict[str, int] = {}
    found: list[Instruction] = []
    jumps: list[tuple[int, str]] = []
    marks = [(m.start(), m[1]) for m in _LABEL.finditer(text)]
    for match in _LINE.finditer(text):
        while marks and marks[0][0] < match.start():
            labels[marks.pop(0)[1]] = len(found)
        _, predicate, name, operands, control = match.groups()
        kind, *modifiers = name.split(".")
        if kind == "BRA" and (to := _TARGET.search(operands)):
            jumps.append((len(found), to[1]))
        found.append(
            Instruction(
                predicate or "", kind, tuple(modifiers), operands.strip(), *_control(control)
            )
        )
    branches = tuple((at, labels[to]) for at, to in jumps if to in labels)
    return Code(tuple(found), branches)


def _control(upper: str | None) -> tuple[int, int | None, int | None, tuple[int, ...]]:
    """The fields stall, result, read and waits, from the upper half of an encoding."""
    if upper is None:
        return 1, None, None, ()
    bits = int(upper, 16) >> 41
    result, read, waits = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
    return (
        max(1, bits & 15),
        None if result == _NONE else result,
        None if read == _NONE else read,
        tuple(n for n in range(6) if waits >> n & 1),
    )


def disassembled(cubin: bytes, encodings: bool = False) -> str:
    """The disassembly of a cubin as text.

    Raises:
        RuntimeError: nvdisasm, which Triton carries, fails on it.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        options: Sequence[str] = ("-c", "-hex") if encodings else ("-c",)
        done = subprocess.run([_nvdisasm(), *options, file.name], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm cannot read a kernel: {done.stderr.strip()}")
    return done.stdout


@cache
def _nvdisasm() -> str:
    import triton  # compiling needs it, reading IR does not

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm")

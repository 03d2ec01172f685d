"""What a kernel's machine code says about how it moves memory, read without running it.

    LDG.E.128 R8, …      a thread reads 16 bytes
    LDG.E.128 R12, …     32 are on their way
    FADD R8, R8, R12     the first use: it waits

Tiles that a loop keeps on their way go to shared memory (LDGSTS), in groups; DEPBAR waits for all but the last few.

Instructions count once, wherever they stand: a loop's body is the kernel's traffic, and so is what has no loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gflow.compiler.reports.sass.instructions import disassembled
from gflow.dialects.program import DeviceCode
from gflow.dialects.program.form import unpacked

#: bytes of an access of a thread, which is as wide as they get
FULL = 16

_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_GLOBAL = frozenset({"LDG", "STG", "LDGSTS", "LD", "ST"})
_ON_CHIP = frozenset({"LDS", "STS", "LDSM", "STSM"})
_REGISTER = re.compile(r"\bR(\d+)(\.64)?")


@dataclass(frozen=True)
class Traffic:
    """accesses: how many instructions access device memory, by bytes of a thread. on_way: most bytes that a thread
    has asked for when it first waits. on_chip: accesses of shared memory. divisions: of integers, by a number that
    is not known before it runs; some thirty instructions each. instructions: in all."""

    accesses: dict[int, int]
    on_way: int
    on_chip: int
    divisions: int
    instructions: int

    @property
    def bytes(self) -> int:
        return sum(width * count for width, count in self.accesses.items())

    @property
    def full(self) -> float:
        """The share of bytes that move by accesses of full width."""
        return FULL * self.accesses.get(FULL, 0) / self.bytes if self.accesses else 0.0

    @property
    def access(self) -> int:
        """The width by which most bytes move; 0 if none do."""
        return max(self.accesses, key=lambda w: (w * self.accesses[w], w), default=0)


def traffic_of(code: DeviceCode) -> Traffic:
    """The traffic of a kernel."""
    return traffic(disassembled(unpacked(code.image)))


def traffic(text: str) -> Traffic:
    """The traffic of a disassembled kernel."""
    accesses: Counter[int] = Counter()
    waiting: list[tuple[range, int]] = []  # registers that loads fill, and bytes
    groups = [0]  # bytes for shared memory
    on_way = on_chip = divisions = instructions = 0
    for name, operands in _LINE.findall(text):
        kind, *modifiers = name.split(".")
        instructions += kind not in ("NOP", "BRA", "EXIT")
        on_chip += kind in _ON_CHIP
        divisions += kind == "I2F" and "RP" in modifiers
        touched = set(_registers(operands))
        used = [n for n, (registers, _) in enumerate(waiting) if touched & set(registers)]
        if used or kind == "DEPBAR":
            on_way = max(on_way, sum(size for _, size in waiting) + sum(groups))
        if used:
            del waiting[: used[-1] + 1]  # they come in order
        if kind == "LDGDEPBAR":
            groups.append(0)
        elif kind == "DEPBAR" and (count := re.search(r", (0x[0-9a-f]+)", operands)):
            left = int(count[1], 16)  # without, it waits for scoreboards, not for groups
            groups = [*groups[:-1][len(groups) - 1 - left :], 0] if left < len(groups) else groups
        if kind in _GLOBAL:
            width = _width(modifiers)
            accesses[width] += 1
            if kind == "LDGSTS":
                groups[-1] += width
            elif kind in ("LDG", "LD"):
                first = next(_registers(operands), 0)
                waiting.append((range(first, first + max(1, width // 4)), width))
    return Traffic(dict(sorted(accesses.items())), on_way, on_chip, divisions, instructions)


def _registers(operands: str) -> Iterator[int]:
    for number, pair in _REGISTER.findall(operands):
        yield int(number)
        if pair:
            yield int(number) + 1


def _width(modifiers: list[str]) -> int:
    """Bytes of an access, from its instruction's modifiers."""
    for modifier in modifiers:
        if modifier in ("128", "64"):
            return int(modifier) // 8
        if modifier in ("U8", "S8", "U16", "S16"):
            return int(modifier[1:]) // 8
    return 4

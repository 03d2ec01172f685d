"""What the steps of a program read and write, as its IR says: plain data to check a run against."""

from __future__ import annotations

from ..records import record
from . import Place, TensorRef


@record
class Access:
    """A value of the IR, by its number, and where a step touches it."""

    value: int
    ref: TensorRef


@record
class Unit:
    """Steps `begin` to `end` (left out), which together run some ops.

    scratch: bytes of the arena, from and to, that they may use besides. in_place: reads and writes, by
    number, that may be of the same memory.
    """

    begin: int
    end: int
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    scratch: tuple[tuple[int, int], ...] = ()
    in_place: frozenset[tuple[int, int]] = frozenset()


@record
class Accesses:
    """arguments, constants: the values that are there at the beginning. returned: those that the caller
    gets, and where."""

    units: tuple[Unit, ...]
    arguments: tuple[int, ...]
    constants: tuple[int, ...]
    returned: tuple[tuple[int, Place], ...]

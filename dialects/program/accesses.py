"""The memory that each step of a program may read and write, from the IR. Checks compare a run with it."""

from __future__ import annotations

from ..records import record
from . import Place, TensorRef


@record
class Access:
    """An access of a step to a value of the IR: the value's number, and its place."""

    value: int
    ref: TensorRef


@record
class Unit:
    """Steps `begin` to `end` (exclusive), which together run one or more ops.

    scratch: the ranges of bytes of the arena that they may use as scratch memory. in_place: pairs of a read and a
    write, by number, that may share memory.
    """

    begin: int
    end: int
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    scratch: tuple[tuple[int, int], ...] = ()
    in_place: frozenset[tuple[int, int]] = frozenset()


@record
class Accesses:
    """All accesses of a program.

    units: in the order of steps. arguments, constants: the values that are defined at the beginning. returned: the
    values that the caller gets, and their places.
    """

    units: tuple[Unit, ...]
    arguments: tuple[int, ...]
    constants: tuple[int, ...]
    returned: tuple[tuple[int, Place], ...]

"""Detects data races between the programs of a launch: they have no order, so none may access what another writes.

    program 0 stores to 0x1000      writer[0x1000] = 0
    program 3 loads from 0x1000     an error: on a GPU it may come before or after

A race is found in any order of the programs, at the later of the two accesses. Addresses are those of elements' first
bytes, since one launch accesses a tensor by elements of one size. Atomic updates are not checked.
"""

from __future__ import annotations

import numpy as np

#: log2 of the bytes of memory that one pair of arrays covers
_PAGE = 20
#: stand for no program and for several programs, in place of a program's number
_NOBODY, _SEVERAL = 0, -1


class Race(RuntimeError):
    """Two programs of a launch access one address, and one of them writes."""


class Owners:
    """The readers and writers of memory during one launch. program: the number of the running program."""

    def __init__(self) -> None:
        self.program = 0
        self._pages: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def load(self, addresses: np.ndarray) -> None:
        """Record that the running program reads elements.

        Raises:
            Race: another program has written one of them.
        """
        own = self.program + 1
        for page, at in self._by_page(addresses):
            writer, reader = self._arrays(page)
            self._compare(writer[at], own, page, at, "reads what", "writes")
            before = reader[at]
            reader[at] = np.where((before == _NOBODY) | (before == own), own, _SEVERAL)

    def store(self, addresses: np.ndarray) -> None:
        """Record that the running program writes elements.

        Raises:
            Race: another program has read or written one of them.
        """
        own = self.program + 1
        for page, at in self._by_page(addresses):
            writer, reader = self._arrays(page)
            self._compare(writer[at], own, page, at, "writes what", "writes")
            self._compare(reader[at], own, page, at, "writes what", "reads")
            writer[at] = own

    def _compare(
        self, found: np.ndarray, own: int, page: int, at: np.ndarray, what: str, verb: str
    ) -> None:
        other = (found != _NOBODY) & (found != own)
        if not other.any():
            return
        n = int(np.argmax(other))
        who = "another one" if found[n] == _SEVERAL else f"program {int(found[n]) - 1}"
        raise Race(
            f"program {self.program} {what} {who} {verb}, at address {(page << _PAGE) + int(at[n])}: "
            "programs of a launch have no order"
        )

    @staticmethod
    def _by_page(addresses: np.ndarray) -> list[tuple[int, np.ndarray]]:
        pages = addresses >> np.uint64(_PAGE)
        inside = (addresses & np.uint64((1 << _PAGE) - 1)).astype(np.int64)
        return [(int(page), inside[pages == page]) for page in np.unique(pages)]

    def _arrays(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        if page not in self._pages:
            size = 1 << _PAGE
            self._pages[page] = np.zeros(size, np.int32), np.zeros(size, np.int32)
        return self._pages[page]

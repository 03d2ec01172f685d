"""The memory of executables: one block for all that never run at the same time."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

import torch

#: bytes of the smallest block, so that its address is good
_SMALLEST = 64
_CPU = torch.device("cpu")


class User(Protocol):
    """What shares an arena: it says how much it needs, and lets go of a block that was replaced."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena that its program needs."""

    def let_go(self) -> None:
        """Drop what was made for the arena's present memory, which is about to be replaced."""


class Arena:
    """A block as large as its largest user needs. It is allocated when one of them runs.

    Users run one at a time, under `lock`; no value outlives a run. `on` gives the arena of those that
    run on another device.

    where: the device that its memory is on. stream: the one that a user ran on last, where there are any.
    """

    def __init__(self, where: torch.device = _CPU) -> None:
        self.where = where
        self.stream: int | None = None
        self._others: dict[torch.device, Arena] = {}
        self.lock = threading.RLock()
        self._users: weakref.WeakSet[User] = weakref.WeakSet()
        self._memory: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated now."""
        return 0 if self._memory is None else self._memory.numel()

    def on(self, where: torch.device) -> Arena:
        """This arena, or its sibling on another device."""
        if where == self.where:
            return self
        with self.lock:
            return self._others.setdefault(where, Arena(where))

    def join(self, user: User) -> None:
        """`user` will run in this arena."""
        with self.lock:
            self._users.add(user)
            if self._memory is not None and user.arena_bytes > self._memory.numel():
                self._drop()

    def leave(self, user: User) -> None:
        """`user` runs here no more; what only it needed is freed."""
        with self.lock:
            self._users.discard(user)
            user.let_go()
            if self._memory is not None and self._needed() < self._memory.numel():
                self._drop()

    def memory(self) -> torch.Tensor:
        """The block; its address may change when users come and go."""
        if self._memory is None:
            self._memory = torch.empty(self._needed(), dtype=torch.uint8, device=self.where)
        return self._memory

    def _needed(self) -> int:
        return max((_SMALLEST, *(u.arena_bytes for u in self._users)))

    def _drop(self) -> None:
        self._memory = None
        for user in self._users:
            user.let_go()

"""The memory of executables. Executables that never run at the same time share one block."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

import torch

#: bytes of the smallest block, so its address is aligned
_SMALLEST = 64
_CPU = torch.device("cpu")


class User(Protocol):
    """A user of an arena: it states the bytes that it needs, and drops references to a block that is replaced."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena that its program needs."""

    def let_go(self) -> None:
        """Drop everything that refers to the present block, which is about to be replaced."""


class Arena:
    """A block of the size of its largest user, allocated when a user runs.

    Users run one at a time, under `lock`. No value outlives a run. `on` gives the arena for another device.

    where: the device of the memory. stream: the stream of the latest run, on devices with streams.
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
        """Add a user of this arena."""
        with self.lock:
            self._users.add(user)
            if self._memory is not None and user.arena_bytes > self._memory.numel():
                self._drop()

    def leave(self, user: User) -> None:
        """Remove a user, and free the memory that only it needed."""
        with self.lock:
            self._users.discard(user)
            user.let_go()
            if self._memory is not None and self._needed() < self._memory.numel():
                self._drop()

    def memory(self) -> torch.Tensor:
        """The block. Its address may change when users join and leave."""
        if self._memory is None:
            self._memory = torch.empty(self._needed(), dtype=torch.uint8, device=self.where)
        return self._memory

    def _needed(self) -> int:
        return max((_SMALLEST, *(u.arena_bytes for u in self._users)))

    def _drop(self) -> None:
        self._memory = None
        for user in self._users:
            user.let_go()

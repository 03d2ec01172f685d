"""One rank compiles, the others receive the result: programs that all ranks of a group run are compiled once.

The first rank that needs a program claims it in the store of `torch.distributed`, compiles it, and stores the result
there. It sends heartbeats meanwhile, so the others wait as long as it takes, but not for a rank that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from .agreement import DisagreementError, timeout_of

#: the seconds between heartbeats, and between queries for the result
_SIGN, _LOOK = 0.5, 0.02


def done_once(key: str, name: str, make: Callable[[], bytes]) -> bytes | None:
    """The result of `make`, which is called only on the first rank that calls this function.

    Args:
        key: the key of the work; ranks with equal keys get the same result.
        name: the name of the program, for messages.
        make: does the work. Its errors are raised on the rank that calls it.

    Returns:
        The result; None if that rank failed or the store does not answer. The caller then does the work itself.

    Raises:
        DisagreementError: the working rank sent no heartbeat for the group's timeout.
    """
    store = dist.distributed_c10d._get_default_store()
    at = f"gflow/work/{key}"
    try:
        if store.add(f"{at}/claims", 1) > 1:
            return _taken(store, at, name)
        store.set(f"{at}/rank", str(dist.get_rank()))
    except RuntimeError:  # the store is gone; comparing programs (`agreement.py`) will report it
        return None
    made = b""
    try:
        with _signs(store, at):
            made = make()
    finally:  # empty: the others do the work themselves
        _put(store, f"{at}/made", made)
    return made


def _put(store: Any, key: str, value: bytes) -> None:
    try:
        store.set(key, value)
    except RuntimeError:
        return  # as above


@contextmanager
def _signs(store: Any, at: str) -> Iterator[None]:
    ended = threading.Event()

    def give() -> None:
        count = 0
        while not ended.wait(_SIGN):
            count += 1
            _put(store, f"{at}/sign", str(count).encode())

    thread = threading.Thread(target=give, daemon=True, name="gflow: signs of life")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _taken(store: Any, at: str, name: str) -> bytes | None:
    limit = timeout_of(dist.group.WORLD).total_seconds()
    sign, since = b"", time.monotonic()
    while not store.check([f"{at}/made"]):
        time.sleep(_LOOK)
        now = store.get(f"{at}/sign") if store.check([f"{at}/sign"]) else b""
        if now != sign:
            sign, since = now, time.monotonic()
        if time.monotonic() - since > limit:
            rank = store.get(f"{at}/rank").decode() if store.check([f"{at}/rank"]) else "another"
            raise DisagreementError(
                f"rank {dist.get_rank()} waits for {name}, which rank {rank} compiles, and has seen no sign of it for "
                f"{limit:g} s (the group's timeout): look for a rank that has ended or hangs"
            )
    return store.get(f"{at}/made") or None

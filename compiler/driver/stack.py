"""Runs work on a thread with a large stack: MLIR parses, prints and verifies nested constructs recursively."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: enough for `gflow.dialects.limits.MAX_NESTING`
_BYTES = 512 << 20


def with_room(work: Callable[[], T], name: str) -> T:
    """Run `work` on a thread with a large stack and return its result. name: the thread's name.

    Raises:
        BaseException: what `work` raises.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(_BYTES)
    try:
        thread = threading.Thread(target=run, name=name)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if failures:
        raise failures[0]
    return results[0]

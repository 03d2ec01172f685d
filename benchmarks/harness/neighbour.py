"""A process that keeps one core busy, for rounds that are measured beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = "while True: pass"


class Neighbour:
    """A stopped process, bound to one core of those that this process may use."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let it compute; it stands still afterwards."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)


@contextmanager
def neighbour() -> Iterator[Neighbour]:
    """Start the process, and end it."""
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\n{_LOOP}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    process.send_signal(signal.SIGSTOP)
    try:
        yield Neighbour(process)
    finally:
        process.kill()
        process.wait()

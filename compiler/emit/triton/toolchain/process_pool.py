"""A pool of processes that compile Triton kernels in parallel, and are reused."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: the most seconds for one kernel; Triton can take hours for a block that is far too large
PATIENCE = 120.0
_WORKER = "gflow.compiler.emit.triton.toolchain.worker"
#: environment variables with which Triton would interpret kernels, or keep its own files
_NOT_PASSED_ON = ("TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_CACHE_MANAGER")

Request = Mapping[str, Any]
Answer = dict[str, Any]


class _Worker:
    """One process, which answers one request at a time."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED_ON}
        paths = [p for p in sys.path if p]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        self.process = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment, start_new_session=True,
        )  # fmt: skip

    def ask(self, request: Request, patience: float) -> Answer:
        """The answer to a request; it has an `error` if the process ended or took longer than `patience` seconds."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(patience, give_up)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if line.endswith("\n"):
            answer: Answer = json.loads(line)
            return answer
        self.close()
        if late.is_set():
            return {
                "error": f"not done after {patience:g} seconds; a smaller block compiles sooner"
            }
        return {"error": f"the compiler ended with status {process.returncode}"}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _kill(self) -> None:
        """Kill the process, and an assembler that it may have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Pool:
    """A pool of at most `size` processes; each request goes to an idle one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def start(self, count: int) -> None:
        """Start processes before there is work, since they take a second to start."""
        with self._lock:
            self._idle = [w for w in self._idle if w.alive]
            while len(self._idle) < min(count, self.size):
                self._idle.append(_Worker())

    def run(
        self, requests: Sequence[Request], done: Callable[[int, Answer], None],
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        """Process all requests.

        done: called in this thread with the number of a request and its answer, in order of completion. patience: the
        most seconds for one request.
        """
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for n in range(len(requests)):
            todo.put(n)
        answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()

        def serve() -> None:
            worker: _Worker | None = None
            while True:
                try:
                    n = todo.get_nowait()
                except queue.Empty:
                    break
                try:
                    worker = worker if worker and worker.alive else self._take()
                    answer = worker.ask(requests[n], patience)
                except Exception as error:  # otherwise `run` would wait forever
                    answer = {"error": f"{type(error).__name__}: {error}"}
                answers.put((n, answer))
            if worker and worker.alive:
                with self._lock:
                    self._idle.append(worker)

        threads = [
            threading.Thread(target=serve, daemon=True)
            for _ in range(min(self.size, len(requests)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in requests:
                done(*answers.get())
        finally:
            while not todo.empty():  # after an error or an interrupt, start no further requests
                try:
                    todo.get_nowait()
                except queue.Empty:
                    break
            for thread in threads:
                thread.join()

    def _take(self) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
        return _Worker()

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()


_shared: Pool | None = None
_owner = 0


def shared_pool() -> Pool:
    """The pool of this process, with as many workers as CPU cores."""
    global _shared, _owner
    if _shared is None or _owner != os.getpid():  # after a fork, the pipes belong to the parent
        _shared, _owner = Pool(_cores()), os.getpid()
        atexit.register(_shared.close)
    return _shared


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1

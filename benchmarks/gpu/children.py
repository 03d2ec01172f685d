"""Processes that answer requests: lines of JSON in and out, each answer within a time.

A GPU's errors stay in the process that has them: after one, nothing more can be launched there. What may crash or
hang runs in a child, and what it leaves unanswered costs its own row alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.measure import ROOT


class ChildFailure(Exception):
    """A child gave no answer; the message says why."""


class Late(ChildFailure):
    """A child gave no answer in time."""


class Answering(Protocol):
    """What answers requests: a child, or what stands for one in tests."""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request. Raises `ChildFailure` where there is none; the child is ended then."""
        ...

    def end(self) -> None:
        """End it; more than once is no error."""
        ...


class Child:
    """A process of its own. It takes a request at a time; what it prints beside answers is kept for errors."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._read = b""
        self._process = subprocess.Popen(
            list(command), cwd=ROOT, env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Late: there is none after `seconds`.
            ChildFailure: the process ended, or says that it cannot do it.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(time.monotonic() + seconds)
        except BrokenPipeError:
            line = b""
        except Late:
            self.end()
            raise
        if not line:
            said = self._said()
            status = self._process.wait()
            self.end()
            how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise ChildFailure(f"{how}: {said}" if said else how)
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise ChildFailure(answer["failure"])
        return answer

    def _line(self, until: float) -> bytes:
        """The next line of the process; empty at its end."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise Late("not done in time")
            part = os.read(handle, 1 << 16)
            if not part:
                return b""
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _said(self) -> str:
        """The last line of what the process printed as errors."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def end(self) -> None:
        """End the process, and those that it started."""
        if self._errors.closed:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._errors.close()


def python_child(module: str, options: Mapping[str, Any]) -> Child:
    """A process that runs a module of this repository, which calls `answer`."""
    paths = [str(ROOT), *(p for p in sys.path if p)]
    path = os.pathsep.join(dict.fromkeys(paths))
    return Child([sys.executable, "-m", module, json.dumps(options)], {"PYTHONPATH": path})


def answer(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until there are no more. An error of `handle` is the answer to its request."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        try:
            found = handle(json.loads(line))
        except Exception as error:  # whatever it is, it is the answer
            found = {"failure": error_of(error)}
            if path := os.environ.get("GPU_CHECK_ERRORS"):
                with Path(path).open("a", encoding="utf-8") as log:
                    log.write(f"{sys.argv[1:]} {line}{traceback.format_exc()[-4000:]}\n")
        print(json.dumps(found), file=answers, flush=True)


def error_of(error: BaseException) -> str:
    """An error as one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]

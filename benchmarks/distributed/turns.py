"""Ways side by side: the processes of all live at once, and each way has its turns while the others wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Way:
    """The processes of a way's ranks."""

    def __init__(self, name: str, ranks: int, arguments: Sequence[str]) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory()
        store = str(Path(self.folder.name) / "store")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GFLOW_CACHE": "0"}
        base = [sys.executable, "-m", "benchmarks", "distributed", *arguments]
        self.processes = [
            subprocess.Popen(
                [*base, "--ranks", str(ranks), "--rank", json.dumps([r, store, name])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for r in range(ranks)
        ]  # fmt: skip

    def wait(self) -> None:
        """Wait until all ranks have taken their first steps.

        Raises:
            SystemExit: a rank has ended.
        """
        self._answers()

    def ask(self, **request: Any) -> list[Any]:
        """The answers of all ranks to one request.

        Raises:
            SystemExit: a rank has ended.
        """
        for process in self.processes:
            assert process.stdin is not None
            print(json.dumps(request), file=process.stdin, flush=True)
        return self._answers()

    def _answers(self) -> list[Any]:
        found = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                self.end()
                raise SystemExit(f"{self.name}: a rank has failed")
            found.append(json.loads(line))
        return found

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()

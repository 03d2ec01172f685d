"""Programs of several ranks: processes that a test starts, and what each rank runs.

A program is a file with a table of checks. Its command line is `RANK WORLD STORE CHECK...`, and it prints as JSON what
went wrong in each check.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

from warm import Server


@functools.cache
def _server() -> Server:
    """What ranks import, imported once."""
    modules = ["torch._dynamo", "torch.distributed.fsdp", "gflow.nn.graph", "gflow.lowering"]
    server = Server([*modules, "gflow.execution.executor", "gflow.compiler"], OMP_NUM_THREADS="1")
    atexit.register(server.close)
    return server


def command(file: str, *arguments: object) -> list[str]:
    """The command line of a process that runs a file, and has imported what ranks import."""
    return _server().command(file, *map(str, arguments))


def start(
    file: str, *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """A process of one rank that runs a file, in a folder and with more of an environment."""
    return subprocess.Popen(
        command(file, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def run_ranks(program: ModuleType, tmp_path: Path, world: int, checks: list[str]) -> None:
    """Run checks of a program on so many ranks; all must be good on all of them."""
    store = tmp_path / "store"
    ranks = [start(str(program.__file__), rank, world, store, *checks) for rank in range(world)]
    try:
        outputs = [r.communicate(timeout=240) for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    for n, (out, err) in enumerate(outputs):
        assert out.strip(), f"rank {n}: {err[-2000:]}"
        found = json.loads(out.strip().splitlines()[-1])
        problems = [f"{label}: {text}" for label, text in found.items() if text]
        assert not problems, f"rank {n}: {problems[0]}"
        assert list(found) == checks

"""Shell commands of a page: gflow's own run in this process, pipes of them in a shell, ranks of torchrun as forks."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .blocks import ROOT

_MAINS = {
    "gflow-opt": "gflow.compiler.tools.opt",
    "gflow-reduce": "gflow.compiler.tools.reduce",
    "gflow-run": "gflow.saved.run",
}
_HELPERS = ("torchrun", "lit", "cat", "head", "tail", "grep", "ls", "wc", "echo")


class NotOurs(AssertionError):
    """A command that the tests do not run."""


def commands(text: str) -> Iterator[str]:
    """The commands of a script, without comments, continued lines joined."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield line.split(" #")[0].rstrip()


def run(command: str, folder: Path, *, fails: bool = False) -> str:
    """What a command prints, output and errors.

    Raises:
        NotOurs: it is not gflow's.
        AssertionError: it failed, or did not where it should (`fails`).
    """
    words = shlex.split(command)
    if any(c in command for c in "|><;&$"):
        _check_ours(command)
        code, out = _shell(command, folder)
    elif words[:2] == ["torchrun", "--standalone"]:
        code, out = _torchrun(words, folder)
    elif words[0] in _MAINS:
        code, out = _in_process(_main(_MAINS[words[0]]), words[1:])
    elif words[:2] == ["python", "-m"] and words[2].startswith("gflow."):
        code, out = _in_process(_main(words[2]), words[3:])
    else:
        _check_ours(command)
        code, out = _shell(command, folder)
    assert (code != 0) == fails, f"$ {command}\n{out}\nexit status {code}"
    return out


def _check_ours(command: str) -> None:
    for part in re.split(r"[|;&]+", command):
        name = (shlex.split(part) or [""])[0]
        if name not in (*_MAINS, *_HELPERS):
            raise NotOurs(
                f"{name}: not a command of gflow; mark the block as not run, with a reason"
            )


def _main(module: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = importlib.import_module(module).main
    return main


def _in_process(main: Callable[[list[str]], int], arguments: list[str]) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = stop.code if isinstance(stop.code, int) else 1
    return code, printed.getvalue()


def _torchrun(words: list[str], folder: Path) -> tuple[int, str]:
    """`torchrun --standalone --nproc-per-node=N FILE`; ranks are forks of a process that has imported."""
    from launched import start  # of pytest's path: pages on a copy of the sources have no ranks

    (count,) = (int(w.partition("=")[2]) for w in words if w.startswith("--nproc-per-node="))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    ranks = [
        start(
            words[-1],
            folder=folder,
            RANK=str(n),
            LOCAL_RANK=str(n),
            **{k: str(v) for k, v in given.items()},
        )
        for n in range(count)
    ]
    try:
        outputs = ["".join(rank.communicate(timeout=240)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return max(abs(rank.returncode) for rank in ranks), "".join(outputs)


def _shell(command: str, folder: Path) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout

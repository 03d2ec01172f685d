"""Processes that start warm: a server imports modules once, and forks for each command.

`Server(modules).command("package.module", ...)` or `("path.py", ...)` is a command line that does what `python -m` and
`python` do, with its own standard streams, folder, environment and exit status. Hundreds of tests start a process;
importing takes most of the time of many of them.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import warm_client


class Server:
    """A server with modules, until it is closed or this process ends. path: of its socket. options: environment
    variables that the modules read when they are imported."""

    def __init__(self, modules: list[str], **options: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/warm"
        self.own, other = socket.socketpair()
        code = f"import warm; warm.serve({self.path!r}, {modules!r}, {other.fileno()})"
        paths = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        options["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **options},
        )
        other.close()
        if self.own.recv(1) != b"1":
            self.close()
            raise RuntimeError(f"no server with {modules}")

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command through the server."""
        return [sys.executable, "-SE", warm_client.__file__, self.path, *command]

    def close(self) -> None:
        self.own.close()
        self.process.wait()
        self.folder.cleanup()


def serve(path: str, modules: list[str], starter: int) -> None:
    """Fork for commands until the process that started the server is gone, or closes the server."""
    for module in modules:
        importlib.import_module(module)
    with socket.socket(fileno=starter) as alive, socket.socket(*warm_client.KIND) as server:
        server.bind(path)
        server.listen(16)
        alive.send(b"1")
        signal.signal(
            signal.SIGCHLD, signal.SIG_IGN
        )  # the keepers of commands are nobody's concern
        while alive not in select.select([alive, server], [], [])[0]:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                alive.close()
                _keep(client)
            client.close()


def _keep(client: socket.socket) -> None:
    """Fork for one command, and tell how it ends; a client that goes takes it along."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sent, ancillary, _, _ = client.recvmsg(warm_client.LIMIT, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2][:12])
    child = os.fork()
    if child == 0:
        client.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _run(**json.loads(sent))
    ended = os.pidfd_open(child)
    if client in select.select([ended, client], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        client.send(str(status).encode())
    os._exit(0)


def _run(command: list[str], folder: str, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    name, sys.argv, status = command[0], command, 0
    try:
        if name.endswith(".py"):
            sys.path[0] = str(Path(name).resolve().parent)
            runpy.run_path(name, run_name="__main__")
        else:
            sys.path[0] = folder
            sys.modules.pop(name, None)
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

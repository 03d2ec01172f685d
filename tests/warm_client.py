"""The command line of a process that `warm.Server` starts: `python -SE warm_client.py SOCKET COMMAND...`.

It ends as the command does. It imports little: that is what it is for.
"""

import array
import json
import os
import socket
import sys

LIMIT = 1 << 20
KIND = (socket.AF_UNIX, socket.SOCK_SEQPACKET)


def main(path: str, command: list[str]) -> int:
    """Run a command through the server at a socket; returns its exit status, or ends by the signal that ended it."""
    with socket.socket(*KIND) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT)
        server.connect(path)
        request = {"command": command, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        server.sendmsg([json.dumps(request).encode()], streams)
        status = server.recv(16)
    if not status or int(status) >= 0:
        return int(status or 1)
    os.kill(os.getpid(), -int(status))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Atomic writes of files and directories: to a temporary name, synced to the disk, renamed.

A process that is killed at any moment leaves the old or the new version, and perhaps a temporary file, whose name
begins with a dot.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("gflow")

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class SaveError(OSError):
    """A file could not be written. The message says what exists now."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextlib.contextmanager
def _saving(target: Path) -> Iterator[None]:
    """Errors and interrupts inside say that the old file, or none, is still there.

    Raises:
        SaveError: an `OSError` was raised.
    """
    there = "the one that was there is unchanged" if os.path.lexists(target) else "nothing is there"
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise SaveError(error.errno, f"{target} was not saved, {there}: {reason}") from error
    except KeyboardInterrupt:
        _log.warning("%s was not saved, %s: interrupted", target, there)
        raise


@contextlib.contextmanager
def new_file(target: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """A temporary path to write to, which becomes `target` when the block is left without an error.

    durable: wait until it is on the disk. What can be made again need not be.
    mode: its permissions; what the umask leaves without it.

    Raises:
        SaveError: it cannot be written; what was there is whole.
    """
    with _saving(target):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask() if mode is None else mode)
            if durable:
                sync(temporary)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if durable:
        sync(target.parent)


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """`new_file` for a directory. An existing directory is exchanged for the new one and removed.

    If the system cannot exchange two directories atomically, there is a moment in which neither has the final name.

    Raises:
        SaveError: it cannot be written; what was there is whole.
    """
    with _saving(target):
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for folder, _, names in os.walk(temporary):
                for name in names:
                    sync(Path(folder) / name)
                sync(Path(folder))
            if target.is_dir():
                _exchange(temporary, target)
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file's contents, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(one: Path, other: Path) -> None:
    """Swap the names of two directories."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        names = os.fsencode(one), os.fsencode(other)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    aside = Path(tempfile.mkdtemp(dir=other.parent, prefix=f".{other.name}."))
    other.rename(aside / "old")
    one.rename(other)
    (aside / "old").rename(one)
    aside.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Which files are read as code: the user's own, not writable by others, signed with the user's key.

The key is created at its first use: 32 random bytes in `$GFLOW_KEY_FILE`, else `$XDG_STATE_HOME/gflow/key`, else
`~/.local/state/gflow/key`, readable only by its owner. It is stored apart from the files that it signs, so a copied
cache does not contain its own key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

#: least bytes of a key, and those of one that is made here
_LEAST, _MADE = 16, 32
_MOST = 1 << 16


class TrustError(OSError):
    """A file or folder that others may write, or that isn't this user's; the message says which and why."""


def check_folder(path: Path) -> None:
    """Check that a folder is the user's, and that only the user and root can add files to it or replace it.

    Folders above it may belong to root, or be sticky (as /tmp), where users cannot replace files of others. Links in
    the path are followed; the folder itself must not be a link.

    Raises:
        TrustError: the check fails.
        OSError: the folder does not exist.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise TrustError(f"{path} is a link")
    if not stat.S_ISDIR(found.st_mode):
        raise TrustError(f"{path} is not a directory")
    _check_owned(found, path)
    for above in path.resolve().parents:
        found = above.stat()
        if found.st_uid not in (os.geteuid(), 0):
            raise TrustError(
                f"{above} belongs to user {found.st_uid}, who may replace what is in it"
            )
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise TrustError(f"others may write to {above}: mode {_mode(found)}")


def read_file(path: Path, *, private: bool = False) -> bytes:
    """The contents of a file of this user that is not a link and that no other user may write.

    Args:
        private: no other user may read it either.

    Raises:
        TrustError: it is not so.
        OSError: it cannot be read.
    """
    # a pipe in its place must not make us wait
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise TrustError(f"{path} is not a file")
    with os.fdopen(handle, "rb") as file:
        _check_owned(found, path)
        if private and found.st_mode & 0o077:
            raise TrustError(f"others may read {path}: mode {_mode(found)}; chmod 600 it")
        return file.read()


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, and those above it; and check it, old or new.

    Raises:
        TrustError: see `check_folder`.
        OSError: it cannot be made.
    """
    for missing in reversed([p for p in (path, *path.parents) if not os.path.lexists(p)]):
        with contextlib.suppress(FileExistsError):  # another process was first
            missing.mkdir(mode=0o700)
    check_folder(path)


def is_foreign(path: Path) -> str:
    """The reason why a file or folder with code is not trusted; "" if its owner is this user or root, and only the
    owner may write it."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {found.st_uid}"
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        return f"others may write to {path}: mode {_mode(found)}"
    return ""


def _check_owned(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid():
        raise TrustError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & 0o022:
        raise TrustError(f"others may write to {path}: mode {_mode(found)}")


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):o}"


# keys


def key_file() -> Path:
    """The path of this user's key.

    Raises:
        TrustError: there is no home directory to keep it in, or the path depends on the current directory.
    """
    given = os.environ.get("GFLOW_KEY_FILE")
    if given and not Path(given).is_absolute():
        raise TrustError(f"GFLOW_KEY_FILE={given!r} is no absolute path")
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        # the XDG specification: a relative path counts as none
        folder = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        raise TrustError(
            "there is no home directory to keep a key in; set GFLOW_KEY_FILE"
        ) from None
    return folder / "gflow" / "key"


def own_key() -> bytes:
    """This user's key; it is made if there is none.

    Raises:
        TrustError: it is another user's, others may read it, or it is no key.
        OSError: it can neither be read nor made.
    """
    path = key_file()
    try:
        check_folder(path.parent)
        return read_key(path)
    except FileNotFoundError:
        make_folder(path.parent)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_MADE))
            file.flush()
            os.fsync(file.fileno())
        # of processes that make one at the same time, the first to link it wins
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return read_key(path)


def read_key(path: Path) -> bytes:
    """The key in a file.

    Raises:
        TrustError: it is another user's, others may read it, or it holds no key.
        OSError: it cannot be read.
    """
    key = read_file(path, private=True)
    if not _LEAST <= len(key) <= _MOST:
        raise TrustError(f"{path} holds {len(key)} bytes; a key has {_LEAST} to {_MOST}")
    return key


def as_key(key: bytes | str | os.PathLike[str]) -> bytes:
    """A key as it is given: its bytes, or the path of the file that holds them.

    Raises:
        ValueError: it is too short.
        TrustError, OSError: see `read_key`.
    """
    if isinstance(key, (bytes, bytearray)):
        if len(key) < _LEAST:
            raise ValueError(f"a key has at least {_LEAST} bytes, {len(key)} were given")
        return bytes(key)
    return read_key(Path(key))


def signature(key: bytes, *parts: bytes) -> bytes:
    """The HMAC-SHA256 of several byte strings, each with its length."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


def same(one: bytes, other: bytes) -> bool:
    """Whether two signatures agree; it takes as long for those that don't."""
    return hmac.compare_digest(one, other)

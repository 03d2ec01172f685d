"""The on-disk cache of compiled programs and machine code.

It is in `$GFLOW_CACHE_DIR`, else `$XDG_CACHE_HOME/gflow`, else `~/.cache/gflow`. `GFLOW_CACHE=0` turns it off. An entry
is a file. Its name is a hash of everything that it depends on: its source, the machine, and the versions of gflow and
its libraries. If all entries exceed `$GFLOW_CACHE_SIZE` (bytes; 1 GiB by default), the least recently used ones are
removed.

Entries are code. A folder or entry that belongs to another user or that others may write is not used, and an entry is
valid only with the signature of the user's key (`trust.py`) over its name and contents. Files are written to a
temporary name and renamed. A problem is logged once, and the program is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from gflow.dialects.program.environment import OFF, ON
from gflow.dialects.program.processor import processor

from . import trust
from .atomic import SaveError, new_file

_log = logging.getLogger("gflow")

_MAGIC = b"gflow cache 2\n"
_SIGNATURE = 32
_DEFAULT_SIZE = 1 << 30
#: what makes a program of a trace, and what runs it
_SOURCES = (
    "gflow.tracing", "gflow.lowering", "gflow.execution", "gflow.compiler", "gflow.dialects", "gflow.runtime",
)  # fmt: skip


def directory() -> Path | None:
    """The folder of the cache; None if it is turned off, or the folder cannot be used."""
    switch = os.environ.get("GFLOW_CACHE") or "1"
    if switch.lower() in OFF:
        return None
    if switch.lower() not in ON:
        _say_once(
            f"GFLOW_CACHE={switch!r} is neither 1 nor 0: nothing is cached. GFLOW_CACHE_DIR says where the "
            "cache lies"
        )
        return None
    given = os.environ.get("GFLOW_CACHE_DIR")
    if given:
        if not Path(given).is_absolute():
            _say_once(f"GFLOW_CACHE_DIR={given!r} is no absolute path: nothing is cached")
            return None
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # the XDG specification: a relative path counts as none
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "gflow"
    except RuntimeError:  # no home
        return None


@cache
def fingerprint() -> str:
    """What compiled code depends on besides its source: gflow itself, its libraries, the machine."""
    parts = [
        platform.system(),
        platform.machine(),
        sys.implementation.cache_tag or "",
        processor(),
    ]
    for name in ("torch", "torch-mlir"):
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            parts.append(f"{name} -")
    for package in _SOURCES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            parts.extend(_sources(folder))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _sources(folder: str, inside: str = "") -> Iterator[str]:
    """Name, size and time of each Python file in a folder and below. (`Path.rglob` takes five times as long.)"""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".py"):
            stat = entry.stat()
            yield f"{inside}{entry.name} {stat.st_size} {stat.st_mtime_ns}"
        elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
            yield from _sources(entry.path, f"{inside}{entry.name}/")


def key(*parts: str | bytes) -> str:
    """The name of an entry that depends on these parts and on the fingerprint."""
    digest = hashlib.sha256(fingerprint().encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read(kind: str, name: str) -> bytes | None:
    """An entry's bytes; None without a cache, without the entry, or where it is not to be trusted."""
    folder = directory()
    if folder is None:
        return None
    path = folder / kind / name
    try:
        trust.check_folder(path.parent)
        data = trust.read_file(path)
        key = trust.own_key()
    except trust.TrustError as error:
        _say_once(f"the cache in {folder} is not used: {error}")
        return None
    except OSError:
        return None
    head = len(_MAGIC) + _SIGNATURE
    body = data[head:]
    given = data[len(_MAGIC) : head]
    if data[: len(_MAGIC)] != _MAGIC or not trust.same(given, _sign(key, kind, name, body)):
        discard(kind, name, "it is damaged, or not signed with this user's key")
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return body


def discard(kind: str, name: str, why: str) -> None:
    """Remove an invalid entry. The first removal is logged."""
    folder = directory()
    if folder is None:
        return
    path = folder / kind / name
    with contextlib.suppress(OSError):
        path.unlink()
    if str(folder) not in _complained:
        _complained.add(str(folder))
        _log.warning(
            "the entry %s of the cache cannot be used, and is compiled anew (so will others like it): %s",
            path, why,
        )  # fmt: skip


_complained: set[str] = set()


def write(kind: str, name: str, body: bytes) -> None:
    """Add an entry. If the cache cannot be written, this is logged once and not an error."""
    folder = directory()
    if folder is None:
        return
    target = folder / kind / name
    try:
        trust.make_folder(folder)
        trust.make_folder(target.parent)
        key = trust.own_key()
        with new_file(target, durable=False, mode=0o600) as temporary:
            temporary.write_bytes(_MAGIC + _sign(key, kind, name, body) + body)
        _prune(folder)
    except OSError as error:
        cause = error.__cause__ if isinstance(error, SaveError) else error
        why = getattr(cause, "strerror", None) or cause
        _say_once(f"nothing is cached in {folder}: {why}")


def _sign(key: bytes, kind: str, name: str, body: bytes) -> bytes:
    return trust.signature(key, _MAGIC, kind.encode(), name.encode(), body)


@cache
def _say_once(message: str) -> None:
    _log.warning(message)


def _most() -> int:
    """The limit of the cache in bytes."""
    given = os.environ.get("GFLOW_CACHE_SIZE", "")
    if not given:
        return _DEFAULT_SIZE
    if given.isascii() and given.isdigit() and len(given) < 20:
        return int(given)
    _say_once(
        f"GFLOW_CACHE_SIZE={given!r} is no number of bytes (as 1073741824): {_DEFAULT_SIZE} is taken"
    )
    return _DEFAULT_SIZE


def _prune(folder: Path) -> None:
    """Remove the least recently used entries until the cache is below its limit."""
    most = _most()
    entries = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size

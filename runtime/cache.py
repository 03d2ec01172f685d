"""The on-disk cache of compiled programs and machine code.

It lies in `$GFLOW_CACHE_DIR`, else `$XDG_CACHE_HOME/gflow`, else `~/.cache/gflow`; `GFLOW_CACHE=0` turns
it off. An entry is a file named by a hash of all that it depends on: what it was made from, and the
fingerprint of this machine and of the versions at work. Files are written under a temporary name and
renamed, and carry a checksum; one that is damaged counts as absent. When all of them outgrow
`$GFLOW_CACHE_SIZE` (bytes; 1 GiB without it), those not used for longest go.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from .atomic import new_file
from .machine import processor

_log = logging.getLogger("gflow")

_MAGIC = b"gflow cache 1\n"
_DEFAULT_SIZE = 1 << 30


def directory() -> Path | None:
    """Where the cache lies; None if it is turned off."""
    if os.environ.get("GFLOW_CACHE", "1").lower() in ("0", "off", "false", "no"):
        return None
    given = os.environ.get("GFLOW_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "gflow"
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
    for package in ("gflow.compiler", "gflow.dialects", "gflow.runtime"):
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in sorted(folder.rglob("*.py")):
                stat = path.stat()
                parts.append(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key(*parts: str | bytes) -> str:
    """The name of an entry that depends on these parts and on the fingerprint."""
    digest = hashlib.sha256(fingerprint().encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read(kind: str, name: str) -> bytes | None:
    """An entry's bytes; None without a cache, without the entry, or if it is damaged."""
    folder = directory()
    if folder is None:
        return None
    path = folder / kind / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + 32
    body = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != hashlib.sha256(body).digest():
        _log.warning("%s is damaged; it is compiled anew", path)
        path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return body


def write(kind: str, name: str, body: bytes) -> None:
    """Add an entry. A cache that cannot be written is no error: it is logged once."""
    folder = directory()
    if folder is None:
        return
    target = folder / kind / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with new_file(target, durable=False) as temporary:
            temporary.write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
        _prune(folder)
    except OSError as error:
        _say_once(f"nothing is cached in {folder}: {error.strerror or error}")


@cache
def _say_once(message: str) -> None:
    _log.warning(message)


def _prune(folder: Path) -> None:
    """Remove what was not used for longest while there is too much."""
    most = int(os.environ.get("GFLOW_CACHE_SIZE", _DEFAULT_SIZE))
    entries = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size

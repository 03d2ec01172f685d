"""An artifact on disk: a directory with a manifest that lists every file, its size and checksum.

Files that the manifest does not list, files outside of the directory, and links are not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from . import trust
from .atomic import new_directory

FORMAT, VERSION = "gflow-artifact", 1
MANIFEST = "manifest.json"
_SIGNATURE = "signature"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class ArtifactError(ValueError):
    """A saved graph is damaged, of another kind, or from a later version."""


@dataclass
class Bundle:
    """The contents of an artifact. manifest: its entries without the list of files. files: path to contents."""

    manifest: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def write_bundle(
    path: Path,
    bundle: Bundle,
    writers: Mapping[str, Callable[[Path], None]],
    key: bytes | None = None,
) -> None:
    """Write all files to a new directory, then rename it to `path`.

    Args:
        writers: write more files, by path.
        key: signs it.

    Raises:
        ArtifactError: there is something else at `path`.
        SaveError: it cannot be written; what was there is whole.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  # links above it stay links
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ArtifactError(f"{path} is not a directory; a graph is saved as one")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path} holds other files; save the graph to a directory of its own")
    with new_directory(path) as folder:
        listed = {}
        for name in [*bundle.files, *writers]:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in writers:
                writers[name](target)
            else:
                target.write_bytes(bundle.files[name])
            listed[name] = {"size": target.stat().st_size, "sha256": _file_digest(target)}
        manifest = {"format": FORMAT, "version": VERSION, **bundle.manifest, "files": listed}
        manifest.setdefault("seal", seal(manifest))
        manifest["sha256"] = _checksum(manifest)
        if key is not None:
            manifest[_SIGNATURE] = _signed(manifest, key)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_bundle(path: Path, key: bytes | None = None) -> Bundle:
    """Read and check everything.

    Args:
        key: what it must be signed with; without one a signature is not checked.

    Raises:
        ArtifactError: something is missing, changed, a link, elsewhere, or of a later version.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path} is not a directory with a saved graph")
    root = path.resolve()
    try:
        manifest = json.loads(_read(root, MANIFEST, None))
        kind, version = manifest["format"], manifest["version"]
        given = manifest.pop(_SIGNATURE, None)
        if key is not None:
            _check_signature(path, manifest, given, key)
        listed, checksum = manifest["files"], manifest.pop("sha256")
        entries = [(str(name), int(e["size"]), str(e["sha256"])) for name, e in listed.items()]
    except ArtifactError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        # no JSON, or JSON of any kind and depth
        raise ArtifactError(f"{path / MANIFEST} is no manifest of a saved graph") from None
    if kind != FORMAT:
        raise ArtifactError(f"{path / MANIFEST} is no manifest of a saved graph")
    if isinstance(version, int) and version > VERSION:
        raise ArtifactError(
            f"{path} has format version {version}; this gflow reads up to {VERSION}: upgrade gflow"
        )
    if checksum != _checksum(manifest):
        raise ArtifactError(f"{path / MANIFEST} is damaged: its checksum does not match")
    files = {}
    for name, size, digest in entries:
        files[name] = _read(root, name, size)
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise ArtifactError(f"{path / name} is damaged: its checksum does not match")
    return Bundle(manifest, files)


def _check_signature(path: Path, manifest: dict[str, Any], given: Any, key: bytes) -> None:
    """
    Raises:
        ArtifactError: it isn't signed with this key.
    """
    if given is None:
        raise ArtifactError(f"{path} is not signed; a key was given, so it is refused")
    wanted = _signed(manifest, key).encode()
    if not isinstance(given, str) or not trust.same(given.encode(), wanted):
        raise ArtifactError(f"{path} is not signed with this key, or was changed since")


def _signed(manifest: dict[str, Any], key: bytes) -> str:
    """The signature of a manifest, which lists the checksum of every file."""
    text = json.dumps({k: v for k, v in manifest.items() if k != _SIGNATURE}, sort_keys=True)
    return trust.signature(key, FORMAT.encode(), text.encode()).hex()


def _read(root: Path, name: str, size: int | None) -> bytes:
    """A regular file below `root`, by a path that no link is part of."""
    parts = PurePosixPath(name).parts
    if not parts or any(not _NAME.fullmatch(part) for part in parts):
        raise ArtifactError(f"the manifest in {root} lists {name!r}, which is outside of it")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        handle = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        what = "is missing" if missing else f"is a link or cannot be read ({error.strerror})"
        raise ArtifactError(f"{root / name} {what}") from None
    finally:
        os.close(folder)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise ArtifactError(f"{root / name} is not a file")
    with os.fdopen(handle, "rb") as file:
        if size is not None and found.st_size != size:
            raise ArtifactError(
                f"{root / name} is damaged: it has {found.st_size} bytes, {size} were saved"
            )
        return file.read()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def seal(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest, including the checksum of every file. It detects a change of the manifest after it was
    written, even if the checksums of files were changed with it."""
    left_out = ("seal", "sha256", _SIGNATURE)
    text = json.dumps({k: v for k, v in manifest.items() if k not in left_out}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _checksum(manifest: dict[str, Any]) -> str:
    text = json.dumps(
        {k: v for k, v in manifest.items() if k not in ("sha256", _SIGNATURE)}, sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()

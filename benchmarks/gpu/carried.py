"""Machine code and outcomes of races that travel between machines, as archives.

    python -m benchmarks.gpu.carried unpack ARCHIVE…    into the disk cache
    python -m benchmarks.gpu.carried pack FOLDER        what is in it, as FOLDER/gpu_code_N.tar.xz

Entries of the cache are signed with the key of the user who wrote them, and other machines have other keys. Archives
hold them unsigned: unpacking one says that it is trusted. Machine code lies in them uncompressed, which `xz` shrinks to
half of what it makes of the cache's own form. Their names are hashes of the source, the options, the
architecture and the version of Triton, so that code of another version is never taken, only useless.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gflow.dialects.program.form import packed, unpacked
from gflow.runtime.stored import cache

#: machine code; and which way was the fastest, by device
KINDS = ("device_code", "tuning")
#: bytes of entries in an archive: it is to stay below 16 MiB
_MOST = 72 << 20
#: names of what came along, a line each; it is not packed again
_LIST = "carried.txt"


def entries() -> Iterator[tuple[str, str]]:
    """Kind and name of the entries of the cache."""
    folder = cache.directory()
    for kind in KINDS if folder is not None else ():
        assert folder is not None
        for path in sorted((folder / kind).glob("*")):
            if len(path.name) == 64:  # others are being written
                yield kind, path.name


def count() -> dict[str, int]:
    """How many entries there are, by kind."""
    found = dict.fromkeys(KINDS, 0)
    for kind, _ in entries():
        found[kind] += 1
    return found


def unpack(archives: Iterable[Path]) -> int:
    """Put the entries of archives into the cache; how many are there now."""
    names = []
    for archive in archives:
        with tarfile.open(archive) as tar:
            for member in tar:
                kind, _, name = member.name.partition("/")
                file = tar.extractfile(member)
                if kind in KINDS and len(name) == 64 and name.isalnum() and file is not None:
                    cache.write(kind, name, _kept(kind, file.read()))
                    if cache.read(kind, name) is not None:
                        names.append(member.name)
    folder = cache.directory()
    if folder is not None and names:
        with (folder / _LIST).open("a", encoding="utf-8") as listed:
            listed.writelines(f"{name}\n" for name in names)
    return len(names)


def pack(folder: Path) -> list[Path]:
    """Write the entries of the cache that did not come along as archives of a folder: its files."""
    place = cache.directory()
    listed = place / _LIST if place is not None else None
    known = set(listed.read_text().split()) if listed is not None and listed.exists() else set()
    groups: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for kind, name in entries():
        kept = None if f"{kind}/{name}" in known else cache.read(kind, name)
        if kept is None:
            continue
        body = _carried(kind, kept)
        if groups[-1] and size + len(body) > _MOST:
            groups.append([])
            size = 0
        groups[-1].append((f"{kind}/{name}", body))
        size += len(body)
    made = []
    for number, group in enumerate(groups):
        if group:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"gpu_code_{number}.tar.xz"
            _write(path, group)
            made.append(path)
    return made


def _carried(kind: str, body: bytes) -> bytes:
    """An entry's body as it travels: of machine code a line with the rest, then the image."""
    if kind != "device_code":
        return body
    rest = json.loads(body)
    image = unpacked(rest.pop("image"))
    return json.dumps(rest).encode() + b"\n" + image


def _kept(kind: str, body: bytes) -> bytes:
    """The body of an entry that has travelled, as the cache keeps it."""
    if kind != "device_code":
        return body
    rest, _, image = body.partition(b"\n")
    return json.dumps({**json.loads(rest), "image": packed(image)}).encode()


def _write(path: Path, group: Sequence[tuple[str, bytes]]) -> None:
    part = path.with_name(path.name + ".part")
    with tarfile.open(part, "w:xz", preset=6) as tar:
        for name, body in group:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    part.replace(path)


def main(argv: Sequence[str]) -> None:
    if argv[0] == "unpack":
        print(f"{unpack(map(Path, argv[1:]))} entries came along", file=sys.stderr)
    else:
        for path in pack(Path(argv[1])):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])

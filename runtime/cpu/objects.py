"""Loads object files of LLVM (relocatable ELF for x86-64) into memory.

Kernels are compiled with the large code model, so an object holds code, constants, and 64-bit
absolute and relative relocations against them and against the few functions that kernels call. A
linker is not needed, nor is LLVM in the process that loads.

Source: System V ABI, AMD64 supplement (relocation types), ELF-64 object file format.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from gflow.dialects.records import record

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_WRITE, _ALLOC, _CODE = 1, 2, 4
#: of sections by their flags
_PROTECTIONS = {
    _CODE: mmap.PROT_READ | mmap.PROT_EXEC,
    0: mmap.PROT_READ,
    _WRITE: mmap.PROT_READ | mmap.PROT_WRITE,
}
_MOST_BYTES = 1 << 31
_R_64, _R_PC32, _R_PLT32, _R_32, _R_32S, _R_PC64 = 1, 2, 4, 10, 11, 24
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1


class ObjectError(ValueError):
    """An object file is damaged, or of a kind that this machine does not load."""


def supported() -> bool:
    """Whether object files of this machine can be loaded."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


@dataclass
class LoadedObject:
    """Loaded code. It is valid during the lifetime of this object.

    symbols: the address of each function that the object file defines.
    """

    memory: mmap.mmap
    symbols: dict[str, int]


@record
class _Section:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


def load_object(data: bytes, resolve: Callable[[str], int | None]) -> LoadedObject:
    """Place an object's sections in memory, apply its relocations, and make the code executable.

    Args:
        resolve: the address of a function that the object calls; None if there is none.

    Raises:
        ObjectError: the file is damaged, is for another machine, or calls an unknown function.
    """
    try:
        return _load(data, resolve)
    except ObjectError:
        raise
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise ObjectError(f"the object file is damaged: {error}") from None
    except (OSError, MemoryError) as error:
        raise ObjectError(f"there is no memory for the object file: {error}") from None


def _load(data: bytes, resolve: Callable[[str], int | None]) -> LoadedObject:
    sections = _sections(data)
    offsets, total, parts = _lay_out(sections)
    if total > _MOST_BYTES:
        raise ObjectError(f"the object file wants {total:,} bytes of memory")
    memory = mmap.mmap(-1, max(total, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for n, offset in offsets.items():
        s = sections[n]
        if s.kind != _NOBITS:
            if s.offset + s.size > len(data):
                raise ObjectError("the object file is truncated")
            memory[offset : offset + s.size] = data[s.offset : s.offset + s.size]
    addresses = {n: base + offset for n, offset in offsets.items()}
    symbols: dict[str, int] = {}
    tables: dict[int, list[int | None]] = {}
    missing: dict[tuple[int, int], str] = {}
    for n, s in enumerate(sections):
        if s.kind == _SYMTAB:
            tables[n] = _symbols(data, sections, n, addresses, resolve, symbols, missing)
    for s in sections:
        if s.kind == _RELA and s.info in offsets:
            room = offsets[s.info], sections[s.info].size
            _relocate(data, s, memory, room, base, tables[s.link], missing)
    for begin, end, protection in parts:
        if _libc().mprotect(base + begin, end - begin, protection):
            reason = os.strerror(ctypes.get_errno())
            raise ObjectError(f"memory cannot be made executable: {reason}")
    return LoadedObject(memory, symbols)


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def _sections(data: bytes) -> list[_Section]:
    header = data[:64]
    machine = struct.unpack_from("<H", header, 18)[0] if len(header) == 64 else 0
    if header[:6] != b"\x7fELF\x02\x01" or machine != 62:
        raise ObjectError("not an x86-64 object file")
    (start,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    if size != _SECTION.size:
        raise ObjectError("the object file's section headers have another size")
    found = []
    for n in range(count):
        name, kind, flags, _, offset, length, link, info, align, _ = _SECTION.unpack_from(
            data, start + n * size
        )
        found.append(_Section(name, kind, flags, offset, length, link, info, align))
    return found


def _lay_out(
    sections: list[_Section],
) -> tuple[dict[int, int], int, list[tuple[int, int, int]]]:
    """The offsets of the sections in memory, the bytes that they need, and the protection of each part: code is
    executable, data is not, and nothing is both writable and executable.

    Raises:
        ObjectError: a section is both writable and executable, or an alignment is not a power of two.
    """
    offsets: dict[int, int] = {}
    parts: list[tuple[int, int, int]] = []
    at = 0
    for wanted, protection in _PROTECTIONS.items():
        begin = at
        for n, s in enumerate(sections):
            if not (s.flags & _ALLOC and s.size) or s.flags & (_WRITE | _CODE) != wanted:
                continue
            align = max(s.align, 1)
            if align > mmap.PAGESIZE or align & (align - 1):
                raise ObjectError(f"section {n} of the object file is aligned to {align} bytes")
            at = -(-at // align) * align
            offsets[n] = at
            at += s.size
        if at > begin:
            at = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
            parts.append((begin, at, protection))
    if any(s.flags & _ALLOC and s.flags & _WRITE and s.flags & _CODE for s in sections):
        raise ObjectError("a section of the object file is both writable and executable")
    return offsets, at, parts


def _symbols(
    data: bytes,
    sections: list[_Section],
    table: int,
    addresses: dict[int, int],
    resolve: Callable[[str], int | None],
    defined: dict[str, int],
    missing: dict[tuple[int, int], str],
) -> list[int | None]:
    """The address of each symbol; functions that are defined go to `defined`.

    What is not found is an error only where it is used: to `missing`.
    """
    s = sections[table]
    strings = sections[s.link]
    text = data[strings.offset : strings.offset + strings.size]
    found: list[int | None] = []
    for n in range(s.size // _SYMBOL.size):
        name_at, info, _, section, value, _ = _SYMBOL.unpack_from(data, s.offset + n * _SYMBOL.size)
        name = text[name_at : text.index(b"\0", name_at)].decode()
        if section == _UNDEFINED:
            address = resolve(name) if name else 0
            if address is None:
                missing[table, n] = name
        elif section == _ABSOLUTE:
            address = value
        else:
            address = addresses[section] + value if section in addresses else None
        if address is not None and section not in (_UNDEFINED, _ABSOLUTE) and info & 15 == 2:
            defined[name] = address
        found.append(address)
    return found


def _relocate(
    data: bytes,
    s: _Section,
    memory: mmap.mmap,
    room: tuple[int, int],
    base: int,
    symbols: list[int | None],
    missing: dict[tuple[int, int], str],
) -> None:
    """Apply the relocations of section `s` to a range of bytes: its offset, and its size `room`."""
    offset, size = room
    for n in range(s.size // _RELOCATION.size):
        at, info, addend = _RELOCATION.unpack_from(data, s.offset + n * _RELOCATION.size)
        kind, number = info & 0xFFFFFFFF, info >> 32
        symbol = symbols[number]
        if symbol is None:
            name = missing.get((s.link, number), f"symbol {number}")
            raise ObjectError(f"the object file needs {name}, which is not there")
        if at + (8 if kind in (_R_64, _R_PC64) else 4) > size:
            raise ObjectError("a relocation of the object file lies outside of its section")
        where = offset + at
        value, place = symbol + addend, base + where
        if kind == _R_64:
            struct.pack_into("<Q", memory, where, value & (1 << 64) - 1)
        elif kind == _R_PC64:
            struct.pack_into("<q", memory, where, value - place)
        elif kind in (_R_PC32, _R_PLT32):
            struct.pack_into("<i", memory, where, value - place)
        elif kind == _R_32:
            struct.pack_into("<I", memory, where, value)
        elif kind == _R_32S:
            struct.pack_into("<i", memory, where, value)
        else:
            raise ObjectError(f"relocations of type {kind} are not known here")

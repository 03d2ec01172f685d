"""Writes a `Program` as JSON and reads it, without pickle.

A dataclass or named tuple of `gflow.dialects.program` becomes a list of its name and its fields in order. Reading
creates instances of these types only. The type declarations are the schema: every field, including one that is added
later, is written, read, and checked against its annotation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import types
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .. import program as program_types
from ..extents import Extent, leaves
from ..types import DTYPES, TensorType
from . import Program

#: an upper bound of all numbers in a program: addresses have 48 bits, words 64
_MOST = 1 << 64


class ProgramError(ValueError):
    """A program in a file is damaged, incomplete, or of another version."""


def _known() -> dict[str, Any]:
    found: dict[str, Any] = {"TensorType": TensorType}
    for name, value in vars(program_types).items():
        named_tuple = isinstance(value, type) and issubclass(value, tuple)
        if isinstance(value, type) and (is_dataclass(value) or named_tuple):
            found[name] = value
    return found


_KNOWN = _known()
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind)) if is_dataclass(kind) else kind._fields
    for kind in _KNOWN.values()
}
_ATOMS = (str, int, float, bool, type(None))
_PLAIN = frozenset(_ATOMS)


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes of a value as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


#: by type: reads the fields of a value
_READ = {kind: _reader(names) for kind, names in _FIELDS.items()}


def encode(value: Any) -> Any:
    """A part of a program as JSON data.

    Raises:
        TypeError: programs have no values of this type.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    read = _READ.get(kind)
    if read is not None:
        return [kind.__name__, *[v if type(v) in _PLAIN else encode(v) for v in read(value)]]
    if isinstance(value, tuple):
        return ["", *[v if type(v) in _PLAIN else encode(v) for v in value]]
    if isinstance(value, list):
        return ["list", *map(encode, value)]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, _ATOMS):
        return value
    raise TypeError(f"a program holds {kind.__name__}")


def decode(value: Any) -> Any:
    """The inverse of `encode`.

    Raises:
        ProgramError: the data has values of other types, or fields are missing.
    """
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if not value or not isinstance(value[0], str):
        raise ProgramError("a list without a kind")
    kind, *items = value
    decoded = [decode(item) if isinstance(item, (list, dict)) else item for item in items]
    if kind == "":
        return tuple(decoded)
    if kind == "list":
        return decoded
    made = _KNOWN.get(kind)
    if made is None:
        raise ProgramError(f"there is no kind {kind!r}")
    if len(decoded) != len(_hints(made)):
        raise ProgramError(f"a {kind} has {len(_hints(made))} fields, found {len(decoded)}")
    return made(*decoded)


def seal(program: Program) -> str:
    """The digest of a whole program, code and IR included.

    The code that makes a program stores the digest in it. A later change, in memory or in a file with valid checksums,
    is found by comparing digests. The memory that a kernel accesses depends on its text, its configuration and its
    arguments together, so one digest covers all of them.
    """
    values = {f.name: getattr(program, f.name) for f in fields(program) if f.name != "seal"}
    values["ir"] = _digest(program.ir.encode())
    values["twin"] = _digest(program.twin.encode())
    values["constants"] = [_digest(c) for c in program.constants]
    for name in ("kernels", "declarations"):
        values[name] = {k: _digest(text.encode()) for k, text in values[name].items()}
    values["device_code"] = {
        key: replace(code, image=_digest(unpacked(code.image)))
        for key, code in program.device_code.items()
    }
    encoded = {name: encode(value) for name, value in values.items()}
    return _digest(json.dumps(encoded, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(image: bytes) -> str:
    """Machine code as text, for `DeviceCode.image`."""
    return base64.b64encode(zlib.compress(image, 1)).decode()


def unpacked(text: str) -> bytes:
    """The machine code in `DeviceCode.image`.

    Raises:
        ProgramError: it is damaged.
    """
    try:
        return zlib.decompress(base64.b64decode(text))
    except (ValueError, zlib.error) as error:
        raise ProgramError(f"machine code that cannot be unpacked: {error}") from None


# types


def check_types(program: Program) -> None:
    """Check that every value has the declared type of its field.

    Raises:
        ProgramError: a value has another type; the message says which field.
    """
    check_value(program, Program, "program", program.size is not None)


def check_value(value: Any, wanted: Any, where: str, sized: bool = False) -> None:
    """Check that a value has a declared type. sized: integers may be `Extent`s.

    Raises:
        ProgramError: it has another type; the message starts with `where`.
    """
    if not _checker(wanted, sized)(value):
        # told anew, slowly: where it is
        for part, what, name in _parts(value, wanted, sized):
            if not _checker(what, sized)(part):
                check_value(part, what, f"{where}.{name}", sized)
        raise ProgramError(f"{where} is {_shown(value)}; {_name(wanted)} was expected")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple, with their types."""
    hints = get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [f.name for f in fields(kind)]
    return {name: hints[name] for name in names}


@cache
def _checker(wanted: Any, sized: bool) -> Callable[[Any], bool]:
    """Whether a value is of a type."""
    if wanted is Any:
        return lambda v: True
    if wanted is int:
        if sized:
            return lambda v: (type(v) is int and -_MOST < v < _MOST) or _is_extent(v)
        return lambda v: type(v) is int and -_MOST < v < _MOST
    if wanted is float:
        return lambda v: type(v) is float
    if wanted in (str, bool, bytes, type(None)):
        return lambda v: type(v) is wanted
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return lambda v: type(v) is str and v in args
    if origin in (Union, types.UnionType):
        ways = [_checker(a, sized) for a in args]

        def is_one(v: Any) -> bool:
            # no generator: it would take as long as the check
            for way in ways:  # noqa: SIM110
                if way(v):
                    return True
            return False

        return is_one
    if origin is tuple:
        if len(args) == 2 and args[1] is ...:
            item = _checker(args[0], sized)
            return lambda v: type(v) is tuple and all(map(item, v))
        items = [_checker(a, sized) for a in args]
        return lambda v: (
            type(v) is tuple and len(v) == len(items) and all(f(x) for f, x in zip(items, v))
        )
    if origin is list:
        item = _checker(args[0], sized)
        return lambda v: type(v) is list and all(map(item, v))
    if origin is dict:
        key, item = _checker(args[0], sized), _checker(args[1], sized)
        return lambda v: type(v) is dict and all(map(key, v)) and all(map(item, v.values()))
    if wanted is Extent:
        return _is_extent
    if isinstance(wanted, type):
        hints = _hints(wanted)  # type: ignore[arg-type]
        if wanted is TensorType:
            shape = _checker(hints["shape"], sized)
            return lambda v: type(v) is TensorType and v.dtype in DTYPES and shape(v.shape)
        checks: list[tuple[Callable[[Any], Any], Callable[[Any], bool]]] = []

        def is_kind(v: Any) -> bool:
            if type(v) is not wanted:
                return False
            if not checks:  # looked up when asked: a size may hold another one
                checks[:] = [(attrgetter(n), _checker(h, sized)) for n, h in hints.items()]
            for get, check in checks:  # noqa: SIM110
                if not check(get(v)):
                    return False
            return True

        return is_kind
    raise TypeError(f"a program's field is declared as {wanted}")


def _is_extent(v: Any) -> bool:
    """Whether a value is an `Extent` of integers whose degree is small enough to evaluate."""
    return (
        type(v) is Extent
        and type(v.coefficients) is tuple
        and len(v.coefficients) <= 16
        and all(type(c) is int or (type(c) is tuple and len(c) <= 16) for c in v.coefficients)
        and all(type(c) is int and -_MOST < c < _MOST for c in leaves(v.coefficients))
        and type(v.first) is int
        and -_MOST < v.first < _MOST
        and (v.limit is None or (type(v.limit) is int and -_MOST < v.limit < _MOST))
    )


def _parts(value: Any, wanted: Any, sized: bool) -> list[tuple[Any, Any, str]]:
    """The parts of a value, each with its declared type and name."""
    origin, args = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        for way in args:
            if isinstance(way, type) and type(value) is way:
                return _parts(value, way, sized)
        return []
    if isinstance(value, (list, tuple)) and origin in (list, tuple) and type(value) is origin:
        if (origin is tuple and len(args) != 2) or (len(args) == 2 and args[1] is not ...):
            return [(v, a, str(n)) for n, (v, a) in enumerate(zip(value, args))]
        return [(v, args[0], str(n)) for n, v in enumerate(value)]
    if isinstance(value, dict) and origin is dict:
        return [(v, args[1], str(k)) for k, v in value.items()]
    kind = type(value)
    if kind is wanted and kind in _KNOWN.values():
        return [(getattr(value, name), hint, name) for name, hint in _hints(kind).items()]
    return []


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", None) or str(wanted).replace("gflow.dialects.", "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."

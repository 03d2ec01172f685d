"""The names that a function's code reads."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from gflow.dialects.records import record
from gflow.tracing.context.location import is_user_code


@record
class Names:
    """The names in a code object, including functions defined inside of it.

    Args:
        read: names that it looks up, and strings that may be names of attributes.
        globals: those of them that are names of globals.
        chains: names of globals with the attributes that are read directly from them.
        imports: modules that it imports, with the level of a relative import.
        assigned: attributes and globals that it assigns, with a line.
        loaded: names that it reads, with a line.
        before: names that are read before they are assigned, so the code may read the previous value.
        computed: whether it may look up names that do not occur in the code.
    """

    read: frozenset[str]
    globals: frozenset[str]
    imports: frozenset[tuple[str, int]]
    chains: frozenset[tuple[str, ...]]
    assigned: dict[str, int]
    loaded: dict[str, int]
    before: frozenset[str]
    computed: bool


#: functions that look up names which need not occur in the code; the first two by a name that may occur as a constant
_BY_NAME = ("getattr", "hasattr")
_COMPUTING = {"vars", "__dict__", "__getattribute__", "globals", "locals", "eval", "attrgetter"}
#: instructions that convert a value to text
_FORMATTING = {number for name, number in dis.opmap.items() if name.startswith("FORMAT_")}
_known: dict[CodeType, Names] = {}
_plain: dict[CodeType, frozenset[str]] = {}


def read_names(code: CodeType) -> frozenset[str]:
    """The names that code looks up, and its strings, for any purpose; also "f-string", if it has one."""
    known = _plain.get(code)
    if known is None:
        found = {*code.co_names}
        for constant in code.co_consts:
            if isinstance(constant, str) and constant.isidentifier():
                found.add(constant)
            elif isinstance(constant, tuple):
                found |= {c for c in constant if isinstance(c, str)}
            elif isinstance(constant, CodeType):
                found |= read_names(constant)
        if not _FORMATTING.isdisjoint(code.co_code[::2]):
            found.add("f-string")
        known = _plain[code] = frozenset(found)
    return known


def names_of(code: CodeType) -> Names:
    """All names of a code object, by their use."""
    known = _known.get(code)
    if known is None:
        known = _known[code] = _read(code)
    return known


def _read(code: CodeType) -> Names:
    found: set[str] = set()
    imports: set[tuple[str, int]] = set()
    chains: set[tuple[str, ...]] = set()
    assigned: dict[str, int] = {}
    loaded: dict[str, int] = {}
    first: set[str] = set()
    line = code.co_firstlineno
    chain: tuple[str, ...] = ()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
    computed = False
    for n, instruction in enumerate(instructions):
        name, value = instruction.opname, instruction.argval
        if instruction.starts_line:
            line = _line(instruction, line)
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(value)
            computed |= value in _BY_NAME and not _takes_constant(instructions[n + 1 :])
        elif name == "IMPORT_NAME":  # after the level and the names that are imported from it
            level = instructions[n - 2].argval if n >= 2 else 0
            imports.add((value, level if isinstance(level, int) else 0))
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chains.add((*chain, value))
        elif name in ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "STORE_DEREF"):
            if value in loaded and value not in assigned:
                first.add(value)
            assigned.setdefault(value, line)
            if chain and name in ("STORE_ATTR", "DELETE_ATTR"):
                chains.add((*chain, value))
        if name.startswith("LOAD") and isinstance(value, str):
            loaded.setdefault(value, line)
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            chain = (value,)
        elif name not in ("COPY", "DUP_TOP"):  # as of `module.x += 1`
            chain = (*chain, value) if chain and name == "LOAD_ATTR" else ()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_of(constant)
            found |= inner.globals
            imports |= inner.imports
            chains |= inner.chains
            assigned = inner.assigned | assigned
            loaded = inner.loaded | loaded
            first |= inner.before
            computed |= inner.computed
    read = read_names(code)
    return Names(
        read,
        frozenset(found),
        frozenset(imports),
        frozenset(chains),
        assigned,
        loaded,
        frozenset(first),
        computed or bool(_COMPUTING & read),
    )


_SILENT = ("CACHE", "PRECALL", "EXTENDED_ARG", "PUSH_NULL", "NOP")


def _takes_constant(after: list[Any]) -> bool:
    """Whether the call of `getattr` at the end of these instructions has a constant name: as the last argument, or
    before a default that is loaded directly."""
    calls = [n for n, i in enumerate(after) if i.opname.startswith("CALL")]
    if not calls:
        return False
    last = after[max(0, calls[0] - 2) : calls[0]]
    names = [i.opname == "LOAD_CONST" and isinstance(i.argval, str) for i in last]
    return bool(names) and (names[-1] or (names[0] and last[-1].opname.startswith("LOAD")))


def _line(instruction: Any, line: int) -> int:
    """The line of an instruction that begins a line; Python 3.13 has another attribute for it."""
    number = getattr(instruction, "line_number", None)
    if number is None and type(instruction.starts_line) is int:
        number = instruction.starts_line
    return line if number is None else number


def is_library(code: CodeType) -> bool:
    """Whether code belongs to PyTorch, gflow or Python's standard library."""
    return not is_user_code(code)

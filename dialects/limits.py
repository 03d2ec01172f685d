"""Limits on MLIR text, checked before it is parsed.

MLIR parses, prints and verifies nested constructs by recursion, converts decimal digits in quadratic time, and expands
an alias at each use. So deeply nested text, long numbers or nested aliases crash the process or take unlimited time.
Strings that are not valid UTF-8 crash its Python bindings. No text that a person or a compiler writes comes near these
limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: bytes of one text
MAX_BYTES = 1 << 28
#: depth of nested brackets, with aliases expanded; operators in one expression
MAX_NESTING = 2000
#: digits of one number
MAX_DIGITS = 1000
#: dimensions of one type
MAX_RANK = 1000
#: tokens of one alias, expanded
MAX_EXPANDED = 1 << 22
#: escaped characters of one text: for each, the search for the end of its string takes 100 bytes
MAX_ESCAPES = 1 << 22
#: a string without its end, as a regular expression: characters of one kind are one step
STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*'

_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSING = frozenset(_OPENING.values())
_OPERATORS = frozenset(("+", "-", "*", "mod", "floordiv", "ceildiv"))
# Each takes linear time: it begins where a run of its characters does, and what has no end matches, too.
#: strings and comments (which hold anything), arrows, numbers, names, operators, brackets
_TOKEN = re.compile(
    STRING
    + r'"?|//[^\n]*|->|[#!]\w[\w.$]*(?:[ \t]*=(?!=))?|[A-Za-z_$][\w$]*|\d\w*|[-+*,()\[\]{}<>]'
)
_LONG_NUMBER = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS + 1}}}|0x[0-9a-fA-F]{{{MAX_DIGITS + 1}}}")
_SHAPE = re.compile(r"(?<![\d?*\[\]])(?:[\d?*\[\]]+[ \t]*x[ \t]*)+")
#: the number of a result, for which MLIR makes room
_RESULT = re.compile(r"%[\w.$-]+[#:]\d{7}")
#: strings and comments; or an array whose elements are signed or unsigned: MLIR's bindings cannot read it, and may end
#: the process
_SIGNED_ARRAY = re.compile(STRING + r'"?|//[^\n]*|\barray\s*<\s*([us])i\d')
#: a byte of a string beyond ASCII, written in hexadecimal
_HIGH_BYTE = re.compile(r"\\[89a-fA-F][0-9a-fA-F]")
_STRING = re.compile(STRING + '"?')
_CHARACTER = re.compile(r"\\([0-9a-fA-F]{2})|\\?.", re.DOTALL)
#: what ends the definition of an alias: the words that an op may begin with, or its name in quotes
_OPS = frozenset(("module", "func", "builtin"))
_ALIAS = re.compile(r"[ \t]*[#!]\w[\w.$]*[ \t]*=")
#: in a later line: a pattern that begins with a fixed character is searched for in a third of the time
_LATER_ALIAS = re.compile(rf"\n{_ALIAS.pattern}")
#: hexadecimal digits become 0, all other bytes a space
_DIGITS = bytes(48 if chr(c) in "0123456789abcdefABCDEF" else 32 for c in range(256))


def problem(text: str) -> tuple[str, int, int] | None:
    """The first violation of a limit in a text, as a message, line and column; None if there is none."""
    if len(text) > MAX_BYTES:
        return f"the text has {len(text):,} characters, more than {MAX_BYTES:,}", 1, 1
    if text.count("\\") > MAX_ESCAPES:
        at = text.find("\\")
        return f"the text has more than {MAX_ESCAPES:,} escaped characters", *_position(text, at)
    if text.count("x") > MAX_RANK:
        for shape in _SHAPE.finditer(text):
            if shape.end() - shape.start() > MAX_RANK and shape.group().count("x") > MAX_RANK:
                return f"a type has more than {MAX_RANK} dimensions", *_position(
                    text, shape.start()
                )
    result = _RESULT.search(text)
    if result is not None:
        return "an op has a million results", *_position(text, result.start())
    if "array" in text:
        for match in _SIGNED_ARRAY.finditer(text):
            if match[1]:
                kind = "unsigned" if match[1] == "u" else "signed"
                return f"an array has elements of {kind} type", *_position(text, match.start())
    if _HIGH_BYTE.search(text) is not None:
        for match in _STRING.finditer(text):
            if _HIGH_BYTE.search(match.group()) is not None and not _is_utf8(match.group()):
                return "a string is not UTF-8", *_position(text, match.start())
    suspicious = (
        sum(map(text.count, "([{<+*-")) + text.count("div") + text.count("mod") > MAX_NESTING
        or b"0" * (MAX_DIGITS + 1) in text.encode("utf-8", "replace").translate(_DIGITS)
        or _ALIAS.match(text) is not None
        or _LATER_ALIAS.search(text) is not None
    )
    found = next(_problems(text), None) if suspicious else None
    if found is None:
        return None
    message, at = found
    return message, *_position(text, at)


def _is_utf8(literal: str) -> bool:
    """Whether a string, as MLIR writes it, stands for UTF-8: the bindings end the process over others."""
    data = bytearray()
    for match in _CHARACTER.finditer(literal):
        data += bytes([int(match[1], 16)]) if match[1] else match[0].encode("utf-8", "replace")
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _position(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _problems(text: str) -> Iterator[tuple[str, int]]:
    """What is beyond a limit, and where; in order."""
    depth_of: dict[str, int] = {}  # of aliases, with what they stand for
    size_of: dict[str, int] = {}
    alias = ""  # the one that is being defined
    deepest = size = 0
    closers: list[str] = []
    operators = [0]  # of the expression in each bracket
    for match in _TOKEN.finditer(text):
        token, at = match.group(), match.start()
        first = token[0]
        if alias and size and not closers and (first == '"' or token in _OPS):
            alias = ""
        if first in '"/' or token == "->":
            continue
        size += 1
        if first in _OPENING:
            closers.append(_OPENING[first])
            operators.append(0)
            deepest = max(deepest, len(closers))
            if len(closers) > MAX_NESTING:
                yield f"brackets nest more than {MAX_NESTING} deep", at
        elif first in _CLOSING:
            if (
                closers and closers[-1] == first
            ):  # else it is part of `>=`, or an error for the parser
                closers.pop()
                operators.pop()
        elif first == ",":
            operators[-1] = 0
        elif token in _OPERATORS:
            operators[-1] += 1
            if operators[-1] > MAX_NESTING:
                yield f"an expression has more than {MAX_NESTING} operators", at
        elif first in "#!":
            if token[-1] == "=" and not closers:
                alias, deepest, size = token[:-1].rstrip(), 0, 0
            deepest = max(deepest, len(closers) + depth_of.get(token, 0))
            size += size_of.get(token, 0)
            if deepest > MAX_NESTING:
                yield f"brackets nest more than {MAX_NESTING} deep, through aliases", at
            if size > MAX_EXPANDED and alias:
                yield f"the alias {alias} stands for more than {MAX_EXPANDED:,} tokens", at
        elif len(token) > MAX_DIGITS and _LONG_NUMBER.search(token):
            yield f"a number has more than {MAX_DIGITS} digits", at
        if alias and token[-1] != "=":
            depth_of[alias], size_of[alias] = deepest, size

"""Assembly → generic text, on as many lines."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from .. import limits
from ..opdef import OpDef
from ..ops import OPS
from . import entries
from .scan import ScanError, end_of_group, find_outside, split_list
from .scan import depth as depth_of
from .types import long, runs, type_list

_OP = re.compile(r"(\s*)(?:(%[^\"=]*)=\s*)?gflow\.(\w+)\s*")
_FUNC = re.compile(r"(\s*)func\s+(@[\w$.-]+)\s*\(")
_RETURN = re.compile(r"(\s*)return\s+(?=%)")
_BINDING = re.compile(r"(%[\w.$-]+)\s*=\s*(%[\w.$#-]+)\s*:\s*(.*)\Z", re.DOTALL)
_STATEMENT = re.compile(
    r'^[ \t]*(?:(%[^"=\n]*)=[ \t]*)?gflow\.(\w+)(?![\w.]|[ \t]*=)', re.MULTILINE
)
_FUNCTION = re.compile(r"^[ \t]*func[ \t]+@", re.MULTILINE)
_COMMENT = re.compile(rf'({limits.STRING}"?)|//.*')


_TOO_LONG = f"the generic form up to here has more than {limits.MAX_BYTES:,} characters"


class AssemblyError(ValueError):
    """Text is no assembly. line: where, from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def is_assembly(text: str) -> bool:
    """Whether a text has a function or an op in the form of this folder."""
    if _FUNCTION.search(text):
        return True
    return any(m[1] or m[2] in OPS for m in _STATEMENT.finditer(text))


def to_generic(text: str) -> str:
    """What MLIR reads for `text`. Ops and functions that are generic already, or of other dialects, stay so.

    Raises:
        AssemblyError: an op is not known, or not written as the grammar says.
    """
    body, mark, resources = text.partition("\n{-#")
    reader = _Reader(body.split("\n"))
    reader.read()
    return "\n".join(reader.out) + mark + resources


@dataclass
class _Reader:
    lines: list[str]
    out: list[str] = field(default_factory=list)
    location: str = ""
    #: characters of `out`
    size: int = 0
    #: of each open brace: how the op with that region ends; "" for what stays as it is
    open: list[str] = field(default_factory=list)

    def read(self) -> None:
        i = 0
        while i < len(self.lines):
            first = i
            try:
                text, i = self._statement(i)
                text = self._generic(text, first)
                self.size += len(text)
                if self.size > limits.MAX_BYTES:  # types and locations are repeated
                    raise ScanError(_TOO_LONG)
                self.out += text.split("\n")
            except ScanError as error:
                raise AssemblyError(str(error), first + 1) from None
            except RecursionError:
                raise AssemblyError("brackets nest too deep", first + 1) from None

    def _statement(self, i: int) -> tuple[str, int]:
        """The lines of a statement from line i on, and the line behind it."""
        text = _uncommented(self.lines[i])
        i += 1
        if not _continues(text):
            return text, i
        found, depth = [text], depth_of(text)
        while i < len(self.lines) and (
            depth > found[-1].endswith("{") or found[-1].endswith((",", "->", ":"))
        ):
            found.append(_uncommented(self.lines[i]))
            depth += depth_of(found[-1])
            i += 1
        if depth > found[-1].endswith("{"):
            raise ScanError("a bracket is not closed")
        return "\n".join(found), i

    def _generic(self, text: str, line: int) -> str:
        stripped = text.strip()
        if stripped.startswith("loc(") and stripped.endswith(")"):
            self.location = " " + stripped
            return ""
        function = _FUNC.match(text)
        if function is not None:
            self.open.append("")
            return _head(text, function)
        found = _OP.match(text)
        if found is not None:
            return self._op(text, found)
        returned = _RETURN.match(text)
        colon = find_outside(text, ":") if returned is not None else -1
        if returned is not None and colon >= 0:
            types = ", ".join(map(_long, split_list(text[colon + 1 :])))
            values = text[returned.end() : colon].strip()
            return f"{returned[1]}return {values} : {types}{self.location}"
        if stripped.startswith("}") and self.open:
            closing = self.open.pop()
            if closing and stripped == "}":
                indent = text[: len(text) - len(text.lstrip())]
                return f"{indent}}}) {closing}"
        if stripped.endswith("{"):
            self.open.append("")
        return self.lines[line] if "\n" not in text else text

    def _op(self, text: str, match: re.Match[str]) -> str:
        definition = OPS.get(match[3])
        if definition is None:
            close = difflib.get_close_matches(match[3], OPS, 1)
            hint = f"; did you mean gflow.{close[0]}?" if close else ""
            raise ScanError(f"unknown op gflow.{match[3]}{hint}")
        start = (
            f'{match[1]}{match[2].rstrip() + " = " if match[2] else ""}"gflow.{definition.name}"'
        )
        rest = text[match.end() :]
        try:
            if definition.regions:
                opening, closing = _region(definition, rest)
                self.open.append(closing + self.location)
                return start + opening
            return start + _plain(definition, rest, bool(match[2])) + self.location
        except ScanError as error:
            raise ScanError(f"gflow.{definition.name}: {error}") from None


def _uncommented(line: str) -> str:
    return (_COMMENT.sub(lambda m: m[1] or "", line) if "//" in line else line).rstrip()


def _continues(text: str) -> bool:
    """Whether a statement of the assembly begins here, which may go on in the next lines."""
    return _FUNC.match(text) is not None or _OP.match(text) is not None


def _long(ty: str) -> str:
    """A type, however it is written."""
    return ty if ty.startswith("tensor<") else long(ty)


def _attributes(definition: OpDef, text: str) -> entries.Entries:
    found = entries.read(text)
    return {name: entries.longer(definition, name, value) for name, value in found.items()}


def _signature(
    definition: OpDef, attributes: entries.Entries, inputs: list[str], outputs: list[str]
) -> str:
    """What follows an op's operands in the generic form."""
    if definition.mixed:
        for name, types in (("operandSegmentSizes", inputs), ("resultSegmentSizes", outputs)):
            if name == "resultSegmentSizes" and definition.results is not None:
                continue
            told = ", ".join(map(str, runs(types, definition.groups)))
            attributes.setdefault(name, f"array<i32: {told}>")
    written = entries.write(attributes)
    return f"{written}{' ' if written else ''}: ({', '.join(inputs)}) -> ({', '.join(outputs)})"


def _plain(definition: OpDef, rest: str, has_results: bool) -> str:
    """Operands, attributes and types of an op without a region."""
    colon = find_outside(rest, " :")
    written = rest if colon < 0 else rest[:colon]
    types = "" if colon < 0 else rest[colon + 2 :].strip()
    brace = find_outside(written, "{")
    attributes: entries.Entries = {}
    if brace >= 0:
        attributes = _attributes(definition, written[brace:].strip())
        written = written[:brace]
    value = ""
    if definition.name == "constant" and not written.lstrip().startswith("%"):
        value, written = written.strip(), ""
    operands = split_list(written)
    for operand in operands:
        if not re.fullmatch(r"%[\w.$#-]+", operand):
            raise ScanError(f"expected operands such as %0, found '{operand}'")
    arrow = find_outside(types, "->")
    if arrow >= 0:
        inputs, outputs = type_list(types[:arrow]), type_list(types[arrow + 2 :])
    elif has_results:
        if not types:
            raise ScanError("expected ':' and the type of operands and result")
        if len(types) * len(operands) > limits.MAX_BYTES:
            raise ScanError(_TOO_LONG)
        inputs, outputs = [types] * len(operands), [types] * (definition.results or 1)
    else:
        inputs, outputs = split_list(types), []
    if len(inputs) != len(operands):
        raise ScanError(f"{len(operands)} operands, and types of {len(inputs)}")
    inputs, outputs = list(map(_long, inputs)), list(map(_long, outputs))
    if value:
        attributes["value"] = f"{value} : {outputs[0]}" if outputs else value
    return f"({', '.join(operands)}) {_signature(definition, attributes, inputs, outputs)}"


def _region(definition: OpDef, rest: str) -> tuple[str, str]:
    """What opens the region of an op, and what follows it."""
    rest = rest.rstrip()
    if not rest.startswith("(") or not rest.endswith("{"):
        raise ScanError("expected (%inside = %outside: type, ...) -> types {")
    end = end_of_group(rest, 0)
    inside, operands, inputs = [], [], []
    for item in split_list(rest[1 : end - 1]):
        match = _BINDING.match(item)
        if match is None:
            raise ScanError(f"expected '%inside = %outside: type', found '{item}'")
        inside.append(f"{match[1]}: {_long(match[3].strip())}")
        operands.append(match[2])
        inputs.append(_long(match[3].strip()))
    tail = rest[end:-1].strip()
    attributes: entries.Entries = {}
    at = find_outside(tail, "attributes")
    if at >= 0:
        attributes = _attributes(definition, tail[at + len("attributes") :].strip())
        tail = tail[:at].strip()
    outputs = list(map(_long, type_list(tail[2:]))) if tail.startswith("->") else []
    if tail and not tail.startswith("->"):
        raise ScanError(f"expected '-> types', found '{tail}'")
    block = f" ^bb0({', '.join(inside)}):" if inside else ""
    newlines = "\n" * rest.count("\n")
    opening = f"({', '.join(operands)}) ({{{block}{newlines}"
    return opening, _signature(definition, attributes, inputs, outputs)


def _head(text: str, match: re.Match[str]) -> str:
    """A function's head with long types."""
    end = end_of_group(text, match.end() - 1)
    arguments = [_value(item, ":") for item in split_list(text[match.end() : end - 1])]
    rest = text[end:].rstrip()
    if not rest.endswith("{"):
        raise ScanError("expected the body of the function")
    rest = rest[:-1].rstrip()
    at = find_outside(rest, "attributes")
    more = " " + rest[at:] if at >= 0 else ""
    arrow = (rest[:at] if at >= 0 else rest).strip()
    results = ""
    if arrow:
        if not arrow.startswith("->"):
            raise ScanError(f"expected '-> types', found '{arrow}'")
        results = f" -> ({', '.join(_value(item, '') for item in type_list(arrow[2:]))})"
    newlines = "\n" * (text.count("\n") - more.count("\n"))
    return f"{match[1]}func.func {match[2]}({', '.join(arguments)}){results}{more} {{{newlines}"


def _value(item: str, separator: str) -> str:
    """An argument or a result of a function, with a long type."""
    name = ""
    if separator:
        name, found, item = item.partition(separator)
        if not found:
            raise ScanError(f"expected '%name: type', found '{name}'")
    brace = find_outside(item, "{")
    ty, attributes = (item[:brace], " " + item[brace:]) if brace >= 0 else (item, "")
    return f"{name}{separator} {_long(ty.strip())}{attributes}".strip()

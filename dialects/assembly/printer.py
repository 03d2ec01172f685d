"""Generic text → assembly.

    %0 = "gflow.fused"(%a) ({                        %0 = gflow.fused(%b = %a: 8xf32) -> 8xf32 {
    ^bb0(%b: tensor<8xf32>):                           %1 = gflow.exp %b : 8xf32
      %1 = "gflow.exp"(%b) : (…) -> tensor<8xf32>      gflow.yield %1 : 8xf32
      "gflow.yield"(%1) {operandSegmentSizes = …       }
    }) {operandSegmentSizes = …

Locations that the text holds become lines of their own, `loc("forward:m.0"("model.py":7:0))`: each stands for the ops
below it, up to the next one. Locations of functions, returns and block arguments are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..opdef import OpDef
from ..ops import OPS
from . import entries
from .scan import ScanError, end_of_group, find_outside, split_list
from .types import runs, short, shown, type_list

#: characters of a function's head that stay on one line
_ONE_LINE = 100
_OP = re.compile(r'( *)(?:(%[^"=]*) = )?"gflow\.(\w+)"\(([^()]*)\)')
_FUNC = re.compile(r"( *)func\.func (@[\w$.-]+)\(")
_RETURN = re.compile(r"( *)return (%.*) : (.*)\Z")
_BLOCK = re.compile(r" *\^\w+\((.*)\):\Z")
_ALIAS = re.compile(r"(#loc\d*) = (loc\(.*\))\Z")
_ALIAS_USE = re.compile(r"#loc\d*\b")
_LOCATION_ALIAS = re.compile(r"loc\((#loc\d*)\)")
_END = re.compile(r" *\}(?: loc\(.*\))?\Z")


def to_assembly(text: str) -> str:
    """A module as MLIR prints it, in assembly. Lines that it has no form for stay as they are."""
    body, mark, resources = text.partition("\n{-#")
    lines = body.split("\n")
    aliases = {m[1]: m[2] for m in map(_ALIAS.match, lines) if m}
    writer = _Writer([line for line in lines if not _ALIAS.match(line)], aliases)
    writer.block(0, len(writer.lines))
    return "\n".join(writer.out) + mark + resources


def op_to_assembly(text: str) -> str:
    """One op in its generic form, in assembly, without its location."""
    return "\n".join(
        line for line in to_assembly(text).split("\n") if not line.lstrip().startswith("loc(")
    )


@dataclass
class _Op:
    """A line of the dialect, taken apart."""

    indent: str
    results: str
    definition: OpDef
    operands: list[str]
    attributes: entries.Entries
    inputs: list[str]
    outputs: list[str]


@dataclass
class _Writer:
    lines: list[str]
    aliases: dict[str, str]
    out: list[str] = field(default_factory=list)
    location: str = ""

    def block(self, start: int, end: int) -> None:
        """Write the lines from `start` up to `end`."""
        i = start
        while i < end:
            i = self._line(i, end)

    def _line(self, i: int, end: int) -> int:
        line = self.lines[i]
        try:
            if line.lstrip().startswith("func.func"):
                self.out += _head(line)
                return i + 1
            if _OP.match(line):
                return self._op(i, end)
            found = _RETURN.match(_without_location(line)[0])
            if found is not None:
                types = ", ".join(map(short, split_list(found[3])))
                self.out.append(f"{found[1]}return {found[2]} : {types}")
                return i + 1
        except ScanError:
            pass  # it stays generic
        if _END.match(line):
            line = _without_location(line)[0]
        self.out.append(self._spelled_out(line))
        return i + 1

    def _op(self, i: int, end: int) -> int:
        line = self.lines[i]
        if not line.endswith("({"):
            text, location = _without_location(line)
            found = _parsed(text)
            shown_op = _plain(found)
            self._locate(found.indent, location)
            self.out.append(self._spelled_out(shown_op))
            return i + 1
        indent = line[: len(line) - len(line.lstrip())]
        last = next((j for j in range(i, end) if self.lines[j].startswith(indent + "})")), end)
        if last == end:
            raise ScanError("a region is not closed")
        closing, location = _without_location(self.lines[last])
        block = _BLOCK.match(self.lines[i + 1])
        found = _parsed(line[:-2].rstrip() + closing[len(indent) + 2 :])
        opening = _opening(found, split_list(block[1]) if block else [])
        self._locate(indent, location)
        self.out.append(self._spelled_out(opening))
        self.block(i + 1 + bool(block), last)
        self.out.append(indent + "}")
        return last + 1

    def _locate(self, indent: str, location: str) -> None:
        """Say where the next op comes from, if that is not what the one before said."""
        if not location:
            return
        location = _ALIAS_USE.sub(lambda m: self._resolved(m.group()), location)
        if location != self.location:
            self.location = location
            self.out.append(indent + location)

    def _spelled_out(self, line: str) -> str:
        """A line with locations in the place of their aliases."""
        if "#loc" not in line:
            return line
        line = _LOCATION_ALIAS.sub(lambda m: f"loc({self._resolved(m[1])})", line)
        return _ALIAS_USE.sub(lambda m: f"loc({self._resolved(m.group())})", line)

    def _resolved(self, alias: str) -> str:
        """What an alias of a location stands for."""
        text = self.aliases.get(alias)
        if text is None:
            return alias
        return _ALIAS_USE.sub(lambda m: self._resolved(m.group()), text[4:-1])


def _without_location(line: str) -> tuple[str, str]:
    """A line without the `loc(…)` at its end, and that."""
    start = line.rfind(" loc(")
    if start < 0 or not line.endswith(")"):
        return line, ""
    try:
        whole = end_of_group(line, start + 4) == len(line)
    except ScanError:
        whole = False
    return (line[:start], line[start + 1 :]) if whole else (line, "")


def _parsed(line: str) -> _Op:
    match = _OP.match(line)
    if match is None or match[3] not in OPS:
        raise ScanError("no op of the dialect")
    definition, rest = OPS[match[3]], line[match.end() :]
    attributes: entries.Entries = {}
    if rest.startswith(" {"):
        end = end_of_group(rest, 1)
        attributes, rest = entries.read(rest[1:end]), rest[end:]
    if not rest.startswith(" : ("):
        raise ScanError("no types")
    end = end_of_group(rest, 3)
    if not rest.startswith(" -> ", end):
        raise ScanError("no types of results")
    inputs, outputs = split_list(rest[4 : end - 1]), type_list(rest[end + 4 :])
    inputs, outputs = list(map(short, inputs)), list(map(short, outputs))
    _drop_segments(definition, attributes, inputs, outputs)
    for name, value in attributes.items():
        attributes[name] = entries.shorter(definition, name, value)
    return _Op(
        match[1], match[2] or "", definition, split_list(match[4]), attributes, inputs, outputs
    )


def _drop_segments(
    definition: OpDef, attributes: entries.Entries, inputs: list[str], outputs: list[str]
) -> None:
    """Leave out the lengths of runs that the types tell."""
    if not definition.mixed:
        return
    for name, types in (("operandSegmentSizes", inputs), ("resultSegmentSizes", outputs)):
        told = f"array<i32: {', '.join(map(str, runs(types, definition.groups)))}>"
        if attributes.get(name) == told:
            del attributes[name]
        elif name in attributes or name == "operandSegmentSizes" or definition.results is None:
            raise ScanError("lengths of runs that the types do not tell")


def _plain(op: _Op) -> str:
    """An op without a region."""
    words = [f"gflow.{op.definition.name}"]
    value = op.attributes.get("value", "")
    suffix = f" : tensor<{op.outputs[0]}>" if len(op.outputs) == 1 else ""
    if op.definition.name == "constant" and suffix and value.endswith(suffix):
        words.append(value[: -len(suffix)])
        del op.attributes["value"]
    if op.operands:
        words.append(", ".join(op.operands))
    if op.attributes:
        words.append(entries.write(op.attributes))
    if op.outputs:
        same = len({*op.inputs, *op.outputs}) == 1 and (op.inputs or len(op.outputs) == 1)
        types = op.outputs[0] if same else f"{shown(op.inputs)} -> {shown(op.outputs)}"
        words += [":", types]
    elif op.inputs:
        words += [":", ", ".join(op.inputs)]
    return op.indent + (f"{op.results} = " if op.results else "") + " ".join(words)


def _opening(op: _Op, arguments: list[str]) -> str:
    """The line before a region's ops."""
    if len(arguments) != len(op.operands) or op.definition.regions != 1:
        raise ScanError("a region whose arguments are not the operands")
    bound = []
    for argument, operand, ty in zip(arguments, op.operands, op.inputs):
        name, _, argument_type = _without_location(argument)[0].partition(": ")
        if short(argument_type) != ty:
            raise ScanError("an argument of another type")
        bound.append(f"{name} = {operand}: {ty}")
    results = f"{op.results} = " if op.results else ""
    types = f" -> {shown(op.outputs)}" if op.outputs else ""
    more = f" attributes {entries.write(op.attributes)}" if op.attributes else ""
    return f"{op.indent}{results}gflow.{op.definition.name}({', '.join(bound)}){types}{more} {{"


def _head(line: str) -> list[str]:
    """The lines of a function's head."""
    match = _FUNC.match(line)
    if match is None or not line.endswith(" {"):
        raise ScanError("no function with a body")
    indent, end = match[1], end_of_group(line, match.end() - 1)
    arguments = [_value(item, ": ") for item in split_list(line[match.end() : end - 1])]
    rest = line[end:-2]
    at = find_outside(rest, " attributes ")
    more = rest[at:] if at >= 0 else ""
    arrow = rest[:at] if at >= 0 else rest
    if arrow and not arrow.startswith(" -> "):
        raise ScanError("no types of results")
    # a single type without attributes has no parentheses
    results = [_value(item, "") for item in type_list(arrow[4:])] if arrow else []
    start = f"{indent}func {match[2]}("
    whole = f"{start}{', '.join(arguments)})"
    if results:
        plain = len(results) == 1 and "{" not in results[0]
        whole += f" -> {results[0]}" if plain else f" -> ({', '.join(results)})"
    if len(whole) <= _ONE_LINE:
        return [f"{whole}{more} {{"]
    lines = _listed(start, indent, arguments)
    if results:
        lines += _listed(f"{lines.pop()} -> (", indent, results)
    lines[-1] += f"{more} {{"
    return lines


def _listed(start: str, indent: str, items: list[str]) -> list[str]:
    """A list in parentheses behind `start`: a line for each item, unless all fit into one."""
    whole = f"{start}{', '.join(items)})"
    if len(whole) <= _ONE_LINE:
        return [whole]
    inside = [f"{indent}    {item}," for item in items]
    return [start, *inside[:-1], inside[-1][:-1], f"{indent})"]


def _value(item: str, separator: str) -> str:
    """An argument or a result of a function, with a short type."""
    item = _without_location(item)[0]
    name = ""
    if separator:
        name, _, item = item.partition(separator)
    ty, brace, attributes = item.partition(" {")
    return f"{name}{separator}{short(ty)}{brace}{attributes}"

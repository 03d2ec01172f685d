"""The textual form of pass pipelines: `builtin.module(func.func(cse,gflow-fuse{max-ops=64}))`.

`parse_pipeline` gives the tree, `parse_options` fills a pass's options dataclass from `{a=1 b=2}`.
The syntax is MLIR's own, so a pipeline may mix upstream passes and ours.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import field
from difflib import get_close_matches
from typing import Any

from gflow.dialects.records import record

_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_MAX_DEPTH = 64


class PipelineSyntaxError(ValueError):
    """A malformed pipeline: the error, the text, and the position in it."""

    def __init__(self, message: str, text: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.position = position

    def __str__(self) -> str:
        if not self.text:
            return self.message
        return f"{self.message}\n{self.text}\n{' ' * self.position}^"


@record
class PassItem:
    """A pass in a pipeline: its name, the text between its braces, and its position."""

    name: str
    options: str
    position: int

    def __str__(self) -> str:
        return f"{self.name}{{{self.options}}}" if self.options else self.name


@record
class Nest:
    """Passes anchored at the operations called `anchor`."""

    anchor: str
    position: int = 0
    items: list[PassItem | Nest] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.anchor}({','.join(map(str, self.items))})"

    def passes(self, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], PassItem]]:
        """Every pass in order, with the anchors around it, outermost first."""
        anchors = (*outer, self.anchor)
        for item in self.items:
            if isinstance(item, Nest):
                yield from item.passes(anchors)
            else:
                yield anchors, item


def parse_pipeline(text: str) -> Nest:
    """Parse `text`, whose outermost element must be an anchor: `builtin.module(...)`.

    Raises:
        PipelineSyntaxError: the text is malformed.
    """
    reader = _Reader(text)
    items = reader.items(0)
    if reader.position != len(text):
        raise reader.error("unexpected text after the pipeline")
    if len(items) != 1 or not isinstance(items[0], Nest):
        raise PipelineSyntaxError(
            "expected pass pipeline to be wrapped with the anchor operation type, "
            "e.g. 'builtin.module(...)'",
            text,
            0,
        )
    return items[0]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, message: str) -> PipelineSyntaxError:
        return PipelineSyntaxError(message, self.text, self.position)

    def skip_space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def take(self, char: str) -> bool:
        self.skip_space()
        if self.text[self.position : self.position + 1] == char:
            self.position += 1
            self.skip_space()
            return True
        return False

    def items(self, depth: int) -> list[PassItem | Nest]:
        if depth > _MAX_DEPTH:
            raise self.error(f"pipelines nest at most {_MAX_DEPTH} deep")
        found: list[PassItem | Nest] = []
        self.skip_space()
        if self.position == len(self.text) or self.text[self.position] == ")":
            return found
        while True:
            found.append(self.item(depth))
            if not self.take(","):
                return found

    def item(self, depth: int) -> PassItem | Nest:
        self.skip_space()
        start = self.position
        match = _NAME.match(self.text, start)
        if match is None:
            raise self.error("expected the name of a pass or of an anchor operation")
        self.position = match.end()
        if self.take("("):
            nest = Nest(match.group(), start, self.items(depth + 1))
            if not self.take(")"):
                raise self.error("expected ',' or ')' in the pass pipeline")
            return nest
        options = ""
        if self.take("{"):
            options = self.braced()
            self.skip_space()
        return PassItem(match.group(), options, start)

    def braced(self) -> str:
        """The text up to the brace that closes the one just read."""
        start, depth = self.position, 1
        while self.position < len(self.text):
            char = self.text[self.position]
            depth += (char == "{") - (char == "}")
            self.position += 1
            if depth == 0:
                return self.text[start : self.position - 1].strip()
        raise self.error("missing closing '}' of the pass options")


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the known name closest to `name`, or nothing."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def parse_options(pass_name: str, options: type, text: str) -> Any:
    """An instance of the dataclass `options`, with the fields that `text` (`a=1 b=2`) names.

    Raises:
        PipelineSyntaxError: an unknown option or a value of the wrong kind.
    """
    kinds = typing.get_type_hints(options)
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(options)}
    values: dict[str, Any] = {}
    for key, value in _split_options(text):
        if key not in fields:
            known = f"; it has {', '.join(fields)}" if fields else "; it has no options"
            hint = nearest(key, fields) or known
            raise PipelineSyntaxError(f"pass '{pass_name}' has no option '{key}'{hint}")
        name = fields[key].name
        try:
            values[name] = _read_value(kinds[name], value, f"{pass_name}{{{key}}}")
        except ValueError as error:
            raise PipelineSyntaxError(
                f"option '{key}' of pass '{pass_name}' {error}, found '{value}'"
            ) from None
    return options(**values)


def _split_options(text: str) -> Iterator[tuple[str, str | None]]:
    for match in re.finditer(r"([^\s=]+)(?:=(\{[^}]*\}|\"[^\"]*\"|'[^']*'|\S*))?", text):
        value = match.group(2)
        if value and value[0] in "{\"'":
            value = value[1:-1]
        yield match.group(1).replace("_", "-"), value


def _read_value(kind: Any, text: str | None, option: str) -> Any:
    """The value of an option. Options of another pass are in braces: `fuse={max-ops=64}`."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if text in ("none", "None"):
            return None
        inner = next(a for a in typing.get_args(kind) if a is not type(None))
        return _read_value(inner, text, option)
    if kind is bool:
        if text is None or text.lower() in ("true", "1"):
            return True
        if text.lower() in ("false", "0"):
            return False
        raise ValueError("takes true or false")
    if text is None:
        raise ValueError("needs a value")
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_read_value(inner, part, option) for part in text.split(",") if part)
    if dataclasses.is_dataclass(kind):
        return parse_options(option, typing.cast(type, kind), text)
    if kind is int:
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError("takes an integer") from None
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("takes a number") from None
    return text

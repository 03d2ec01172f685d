"""`--verify-diagnostics`: compares `expected-error@+1 {{text}}` comments with the emitted diagnostics.

The same comments as `mlir-opt`: error, warning, remark or note; `@+N`, `@-N`, `@above`, `@below`,
`@unknown`; `expected-error-re` takes text with regular expressions between `{{` and `}}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..ir.diagnostics import Diagnostic

_COMMENT = re.compile(
    r"expected-(error|note|remark|warning)(-re)? *"
    r"(@([+-][0-9]+|above|below|unknown) *)?\{\{(.*)\}\}$"
)


@dataclass
class Expected:
    """An expected diagnostic. `line` is None for one of unknown location."""

    severity: str
    text: str
    pattern: re.Pattern[str] | None
    line: int | None
    comment_line: int
    comment_column: int
    seen: bool = False

    def matches(self, diagnostic: Diagnostic, file: str) -> bool:
        """Whether location and text agree. The caller compares the severity.

        Locations outside `file` count as unknown: an op may point into the user's Python source.
        """
        line = diagnostic.line if diagnostic.file == file and diagnostic.line else None
        if line != self.line:
            return False
        if self.pattern is not None:
            return self.pattern.search(diagnostic.message) is not None
        return self.text in diagnostic.message


def read_expected(text: str, file: str) -> tuple[list[Expected], list[Diagnostic]]:
    """The expected diagnostics of a source text, and errors in the comments themselves."""
    found: list[Expected] = []
    errors: list[Diagnostic] = []
    waiting: list[Expected] = []
    last_plain = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        line = line.rstrip()
        match = _COMMENT.search(line) if line.endswith("}}") else None
        if match is None:
            for item in waiting:
                item.line = number
            waiting.clear()
            last_plain = number
            continue
        severity, is_regex, _, place, body = match.groups()
        column = match.start() + 1
        pattern = None
        if is_regex:
            try:
                pattern = _regex(body)
            except (re.error, ValueError) as error:
                message = f"invalid regular expression: {error}"
                errors.append(Diagnostic("error", message, file, number, column))
                continue
        item = Expected(severity, body, pattern, number, number, column)
        found.append(item)
        if place == "unknown":
            item.line = None
        elif place == "above":
            item.line = last_plain
        elif place == "below":
            waiting.append(item)
        elif place:
            item.line = number + int(place)
    for item in waiting:
        message = "expected a line below that is not a comment of this kind"
        errors.append(Diagnostic("error", message, file, item.comment_line, item.comment_column))
    return found, errors


def _regex(body: str) -> re.Pattern[str]:
    parts = []
    rest = body
    while rest:
        plain, open_, rest = rest.partition("{{")
        parts.append(re.escape(plain))
        if open_:
            inner, close, rest = rest.partition("}}")
            if not close:
                raise ValueError("found '{{' with no matching '}}'")
            parts.append(f"(?:{inner})")
    return re.compile("".join(parts))


def compare(text: str, file: str, emitted: list[Diagnostic]) -> list[Diagnostic]:
    """The differences between the comments of `text` and the emitted diagnostics; empty if they agree."""
    expected, problems = read_expected(text, file)
    flat: list[Diagnostic] = []
    for diagnostic in emitted:
        flat.append(diagnostic)
        flat += [n for n in diagnostic.notes if not n.message.startswith("see current operation")]
    for diagnostic in flat:
        near = None
        for item in expected:
            if item.seen or not item.matches(diagnostic, file):
                continue
            if item.severity == diagnostic.severity:
                item.seen = True
                break
            near = near or item
        else:
            if near is not None:
                near.seen = True
                message = (
                    f"'{diagnostic.severity}' diagnostic emitted when expecting a '{near.severity}'"
                )
                place = (file, near.comment_line, near.comment_column)
                problems.append(Diagnostic("error", message, *place))
            else:
                message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
                place = (diagnostic.file, diagnostic.line, diagnostic.column)
                problems.append(Diagnostic("error", message, *place, where=diagnostic.where))
    for item in expected:
        if not item.seen:
            message = f'expected {item.severity} "{item.text}" was not produced'
            place = (file, item.comment_line, item.comment_column)
            problems.append(Diagnostic("error", message, *place))
    return problems

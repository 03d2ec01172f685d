"""The code blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_COMMENT = re.compile(r"<!--\s*(?P<key>[a-z ]+):\s*(?P<value>.*?)\s*-->\s*$", re.DOTALL)
_KEYS = ("not run", "file", "measured", "script")


@dataclass(frozen=True)
class Block:
    """One block.

    line: of its first line of text, from 1.
    before: the paragraph before it; heading: the nearest one above it.
    mark: a comment before it, as key and value: ("not run", "needs a GPU").
    """

    page: Path
    line: int
    language: str
    text: str
    before: str = ""
    heading: str = ""
    mark: tuple[str, str] | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and all of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def changes_sources(page: Path) -> bool:
    """Whether a page changes the project's own sources: tests/test_docs_extending.py runs those."""
    return any(block.mark and block.mark[0] == "file" for block in blocks_of(page))


@cache
def blocks_of(page: Path) -> list[Block]:
    """All code blocks of a page, but the site's own directives (`{toctree}`).

    Raises:
        AssertionError: a block is indented rather than fenced, or its mark is none.
    """
    found: list[Block] = []
    before = heading = ""
    mark: tuple[str, str] | None = None
    previous = ""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type == "inline":
            if previous == "heading_open":
                heading = token.content
            before, mark = token.content, None
        elif token.type == "html_block":
            mark = _mark(token.content, f"{page}:{line}")
        elif token.type == "code_block":
            raise AssertionError(f"{page}:{line}: an indented block has no language; fence it")
        elif token.type == "fence":
            language = token.info.strip()
            if not language.startswith("{"):
                found.append(Block(page, line + 1, language, token.content, before, heading, mark))
            before, mark = "", None
        previous = token.type
    return found


def _mark(comment: str, where: str) -> tuple[str, str] | None:
    matched = _COMMENT.match(comment.strip())
    if matched is None:
        return None
    key, value = matched["key"], matched["value"]
    assert key in _KEYS, f"{where}: a block is marked {key!r}; known: {', '.join(_KEYS)}"
    assert value, f"{where}: the mark gives no reason"
    return key, value

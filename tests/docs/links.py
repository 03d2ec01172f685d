"""Links of Markdown pages and of the built site, without a network."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//")


def broken_in_markdown(page: Path) -> Iterator[str]:
    """Links of a page whose file or heading is not there."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        for child in token.children or ():
            target = str(child.attrs.get("href") or child.attrs.get("src") or "")
            if not target or _ELSEWHERE.match(target):
                continue
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            line = (token.map or [0])[0] + 1
            if not file.exists():
                yield f"{page}:{line}: {target}: no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{page}:{line}: {target}: no such heading"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8"))
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(c.content for c in inline.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {v for v in (values.get("id"), values.get("name")) if v}
        wanted = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        if wanted and values.get(wanted) is not None:
            self.links.append(values[wanted] or "")


def broken_in_site(folder: Path) -> Iterator[str]:
    """Links of a site's pages whose file or element is not there."""
    pages: dict[Path, _Page] = {}
    for path in folder.rglob("*.html"):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text("utf-8"))
    for path, page in pages.items():
        for link in page.links:
            if _ELSEWHERE.match(link) or link == "#":
                continue
            name, _, anchor = unquote(link).partition("#")
            file = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not file.is_file():
                yield f"{path.name}: {link}: no such file"
            elif anchor and file in pages and anchor not in pages[file].ids:
                yield f"{path.name}: {link}: no such element"

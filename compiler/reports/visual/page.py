"""The parts that all pages share: frame, style, panning and zooming.

A page is one file. Its data is JSON in a script element. It loads nothing from a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any


def asset(name: str) -> str:
    """The text of a style sheet or script in this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def page(
    title: str, kind: str, header: str, body: str, data: Any, scripts: Sequence[str] = ()
) -> str:
    """A whole page as HTML.

    Args:
        kind: the name of the page's style sheet and script.
        header, body: HTML.
        data: the script reads it as `DATA`.
        scripts: the names of scripts that are loaded before it."""
    parts = "\n".join(asset(f"{name}.js") for name in (*scripts, kind))
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{asset("page.css")}{asset(f"{kind}.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{header}</header>
<main>{body}</main>
<div id="tip" hidden></div><div id="keys" hidden></div>
<script type="application/json" id="data">{text}</script>
<script>{asset("page.js")}
const DATA = JSON.parse(document.getElementById('data').textContent);
{parts}</script>
</body>
</html>
"""


def fact(name: str, value: str) -> str:
    """A name and a value in the page's header, as HTML."""
    return (
        f'<span class="fact"><span class="soft">{escape(name)}</span> <b>{escape(value)}</b></span>'
    )


def byte_text(n: int) -> str:
    """A number of bytes as text with a unit."""
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return (
        f"{n} B" if unit == "B" else f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"
    )


def colour(n: int) -> str:
    """The n-th colour of a sequence in which neighbours are easy to tell apart."""
    hue = (n * 137.508 + 205) % 360
    return f"hsl({hue:.0f} {(62, 45, 70)[n % 3]}% {(62, 55, 70)[n // 3 % 3]}%)"

"""Docstrings as this project writes them: a paragraph `name: meaning` tells of a parameter or a field.

    threads: the most threads that kernels may use; all cores if 0.
    blas: whether generated code may call BLAS.

becomes a field list, beside the `Args:` and `Raises:` that napoleon reads.
"""

from __future__ import annotations

import inspect
import re
from typing import Any


def convert(lines: list[str], names: list[str], role: str) -> list[str]:
    """The same docstring with a field for each of `names` that a paragraph begins with."""
    if not names:
        return lines
    start = re.compile(rf"(?:^|(?<=[.;] ))({'|'.join(map(re.escape, names))}): ")
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        if not start.match(paragraph):
            out += [*paragraph.splitlines(), ""]
            continue
        text = " ".join(line.strip() for line in paragraph.splitlines())
        found = list(start.finditer(text))
        ends = [m.start() for m in found[1:]] + [len(text)]
        out += [f":{role} {m[1]}: {text[m.end() : end].strip()}" for m, end in zip(found, ends)]
        out.append("")
    return out


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [re.sub(r"\bdocs/([\w-]+)\.md", r":doc:`\1`", line) for line in lines]
    if what == "property":
        lines.insert(0, "")  # or napoleon takes what stands before a colon for a type
    elif inspect.isclass(obj):
        lines[:] = convert(lines, _fields(lines), "ivar")
    elif callable(obj):
        names = [n for n in inspect.signature(obj).parameters if n != "self"]
        lines[:] = convert(lines, names, "param")


def _fields(lines: list[str]) -> list[str]:
    """What a class's docstring has a meaning for."""
    text = "\n".join(lines)
    return re.findall(r"(?:^|(?<=[.;] ))([a-z_]+)(?=: )", text, re.MULTILINE)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}

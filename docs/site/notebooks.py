"""Notebooks as pages: each `.ipynb` in docs/ is run by the build, cell by cell, and its page shows what came out.

A cell that raises fails the build. Notebooks are kept without outputs, so that none is stale. A cell's output is what
it printed, and its last expression: by `_repr_html_` where there is one, by `repr` elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.errors import ExtensionError


@dataclass(frozen=True)
class Output:
    """What a cell gave: printed text, and its last expression as text or HTML ("" where there is none)."""

    printed: str
    text: str = ""
    html: str = ""


class CellFailed(ExtensionError):
    """A cell of a notebook has raised."""

    category = "notebook"


class NotebookParser(MystParser):
    """Runs a notebook, and reads it as the Markdown that shows its cells and outputs."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """As a page of Markdown."""
        name = Path(document["source"]).name
        super().parse(markdown(json.loads(inputstring), name), document)


def markdown(notebook: dict[str, Any], name: str) -> str:
    """The page of a notebook, run now. name: of its file, for messages and tracebacks.

    Raises:
        CellFailed: a cell raised.
    """
    parts: list[str] = []
    with _namespace() as scope:
        for number, cell in enumerate(notebook["cells"], 1):
            source = "".join(cell["source"])
            if cell["cell_type"] != "code":
                parts.append(source)
                continue
            output = run_cell(source, scope, f"{name}, cell {number}")
            parts.append(_fence("python", source))
            if output.printed or output.text:
                parts.append(_fence("text", output.printed + output.text))
            if output.html:
                framed = f'<div class="notebook-output">{output.html}</div>'
                parts.append(_fence("{raw} html", framed))
    return "\n\n".join(parts) + "\n"


def run_cell(source: str, scope: dict[str, Any], name: str) -> Output:
    """Run a cell in the notebook's namespace.

    Raises:
        CellFailed: it raised; the message names the cell, and the traceback is the cause.
    """
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    printed, value = io.StringIO(), None
    try:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, name, "exec"), scope)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
    except Exception as error:
        raise CellFailed(f"{name}: {type(error).__name__}: {error}", error) from error
    if value is None:
        return Output(printed.getvalue())
    show = getattr(value, "_repr_html_", None)
    if show is not None:
        return Output(printed.getvalue(), html=show())
    return Output(printed.getvalue(), text=repr(value))


@contextlib.contextmanager
def _namespace() -> Iterator[dict[str, Any]]:
    """A module of its own, in an empty folder."""
    module = types.ModuleType("notebook")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.modules["notebook"] = module  # classes name it as theirs
        try:
            yield vars(module)
        finally:
            del sys.modules["notebook"]
            os.chdir(before)


def _fence(language: str, text: str) -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in _runs(text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _runs(text: str) -> list[str]:
    """Runs of backticks in a text."""
    return [part for part in "".join(c if c == "`" else " " for c in text).split() if part]


def setup(app: Any) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    # a notebook runs in the build's own process: one after the other
    return {"parallel_read_safe": False}

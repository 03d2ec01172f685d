"""Runs a page."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import commands, mlir_text
from .blocks import Block
from .compare import difference

_AFTER = re.compile(r"After(?: `([^`]+)`)?(?!\w)")
_ERROR = re.compile(r"Error(?: of `([^`]+)`)?(?!\w)")
_PASS = re.compile(r"`(gflow-[\w-]+)`")


class Page:
    """What the blocks of a page share: names, a directory, the latest output and IR."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.printed: str | None = None
        self.module: str | None = None

    def run(self, block: Block) -> None:
        """Run one block.

        Raises:
            AssertionError: it does not do what the page says.
        """
        if block.mark and block.mark[0] == "not run":
            return
        if block.mark and block.mark[0] == "script":  # a later command of the page runs it
            (self.folder / block.mark[1]).write_text(block.text, encoding="utf-8")
            return
        kind = getattr(self, f"_run_{block.language}", None)
        assert kind is not None, (
            f"{block.where}: a block {f'in {block.language!r}' if block.language else 'without a language'} "
            "is neither run nor marked `<!-- not run: reason -->`"
        )
        try:
            kind(block)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in the block at {block.where}")
            raise

    def _run_python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        self.printed = printed.getvalue()

    def _run_text(self, block: Block) -> None:
        failing = _ERROR.match(block.before)
        if failing and self.module is not None:
            self.printed = self._opt(failing[1] or _heading(block), fails=True)
        assert self.printed is not None, "nothing was printed before it"
        problem = difference(block.text, self.printed)
        assert problem is None, problem

    def _run_sh(self, block: Block) -> None:
        printed = [commands.run(command, self.folder) for command in commands.commands(block.text)]
        self.printed = "".join(printed)

    def _run_console(self, block: Block) -> None:
        self.printed = ""
        for command, expected in _session(block.text):
            printed = commands.run(command, self.folder, fails="error: " in expected)
            problem = difference(expected, printed) if expected.strip() else None
            assert problem is None, f"$ {command}\n{problem}"
            self.printed += printed

    def _run_mlir(self, block: Block) -> None:
        after = _AFTER.match(block.before)
        if after is None:
            self.module = block.text
            self._opt("")
            return
        assert self.module is not None, "After what? There is no IR before it"
        printed = self._opt(after[1] or _heading(block))
        problem = mlir_text.difference(block.text, mlir_text.arguments(self.module), printed)
        assert problem is None, problem

    def _opt(self, pipeline: str, fails: bool = False) -> str:
        """What gflow-opt makes of the latest module."""
        assert self.module is not None
        source = self.folder / "block.mlir"
        source.write_text(mlir_text.wrap(self.module), encoding="utf-8")
        command = f"gflow-opt {source}"
        if pipeline:
            command += f" '--pass-pipeline=builtin.module(func.func({pipeline}))'"
        return commands.run(command, self.folder, fails=fails)


def _heading(block: Block) -> str:
    named = _PASS.search(block.heading)
    assert named, (
        f"{block.where}: after which pass? Neither the paragraph nor the heading names one"
    )
    return named[1]


def _session(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    text = re.sub(r"\\\n\s*", " ", text)
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a directory, and leave the process's state as it was."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path

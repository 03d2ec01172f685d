"""A copy of the sources with a page's changes, and the page run on it.

<!-- file: compiler/passes/new.py -->                      the block is a new file
<!-- file: dialects/ops/x.py, after: OPS = ( -->           it goes behind the line that begins so
<!-- file: frontend/x.py, in place of: @lowers("a") -->    it replaces the part that begins so, which
                                                           ends at two empty lines
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .blocks import ROOT, Block, blocks_of
from .run import Page, inside

_SOURCES = ("frontend", "dialects", "compiler", "runtime")
_PLACE = re.compile(r"(?P<file>[^,]+)(?:, (?P<how>after|in place of): (?P<line>.+))?", re.DOTALL)


def run_on_a_copy(page: Path, folder: Path) -> None:
    """Apply the page's changes to a copy in `folder`, and run its other blocks with that.

    Raises:
        AssertionError: a change fits nowhere, or a block does not do what the page says.
    """
    copy = make_copy(folder)
    for block in blocks_of(page):
        if block.mark and block.mark[0] == "file":
            change(copy, block)
    paths = [str(folder / "path"), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.scratch", str(page)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def make_copy(folder: Path) -> Path:
    """The sources, importable as `gflow` from `folder/path`, and what tests of them need."""
    copy, path = folder / "copy", folder / "path"
    for name in _SOURCES:
        shutil.copytree(ROOT / name, copy / name)  # with bytecode, which keeps its source's time
    for name in _SOURCES[1:]:
        (copy / "frontend" / name).symlink_to(copy / name)
    path.mkdir()
    (path / "gflow").symlink_to(copy / "frontend")
    (copy / "docs").mkdir()
    for name in ("tests/ir_interpreter.py", "lit_tests/lit.cfg.py"):
        (copy / name).parent.mkdir()
        shutil.copy(ROOT / name, copy / name)
    return copy


def change(copy: Path, block: Block) -> None:
    """Apply one block.

    Raises:
        AssertionError: the line that it names is not there, or there twice.
    """
    assert block.mark is not None
    place = _PLACE.fullmatch(block.mark[1])
    assert place, block.where
    file = copy / place["file"]
    if place["how"] is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        return
    lines = file.read_text("utf-8").splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.strip().startswith(place["line"])]
    assert len(found) == 1, (
        f"{block.where}: {place['file']} has {len(found)} lines {place['line']!r}"
    )
    (begin,) = found
    end = begin + 1
    if place["how"] == "in place of":
        while end < len(lines) and lines[end - 1 : end + 1] != ["\n", "\n"]:
            end += 1
        lines[begin : end - 1] = [block.text]
    else:
        lines[end:end] = [block.text]
    file.write_text("".join(lines), encoding="utf-8")


def main(name: str) -> None:
    """Run a page's blocks, but those that change files, in the copy that this process imports."""
    import gflow

    copy = Path.cwd()
    assert Path(gflow.__file__ or "").resolve().is_relative_to(copy), gflow.__file__
    page = Page(copy)
    with inside(copy):
        for block in blocks_of(Path(name)):
            if block.mark is None or block.mark[0] != "file":
                page.run(block)


if __name__ == "__main__":
    main(sys.argv[1])

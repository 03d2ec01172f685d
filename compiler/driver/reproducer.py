"""Reproducers: a module and the pipeline that fails on it, in one file, in MLIR's own form.

    module { … }

    {-#
      external_resources: {
        mlir_reproducer: {
          pipeline: "builtin.module(func.func(gflow-fuse))",
          disable_threading: true,
          verify_each: true
        }
      }
    #-}

`gflow-opt --run-reproducer FILE` runs it again. A file is written before each pass and goes when
the pass succeeds, so it is there after a crash of the process, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gflow.dialects.limits import STRING
from gflow.dialects.mlir import ir

#: where compilation from Python writes reproducers, if set
DIRECTORY_VARIABLE = "GFLOW_REPRODUCER_DIR"


class ReproducerError(ValueError):
    """A text contains no reproducer, or a reproducer cannot be written."""


@dataclass
class Reproducer:
    """The pipeline and options in a reproducer."""

    pipeline: str
    verify_each: bool = True


class Writer:
    """Writes the module and pipeline that are about to run to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def before(self, root: ir.Operation, pipeline: str, verify_each: bool) -> None:
        """Write the reproducer of a pass that is about to run.

        Raises:
            ReproducerError: the file cannot be written.
        """
        text = root.get_asm(enable_debug_info=True, assume_verified=True)
        flag = str(verify_each).lower()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(
                f"{text.rstrip()}\n\n"
                "{-#\n  external_resources: {\n    mlir_reproducer: {\n"
                f"      pipeline: {_quoted(pipeline)},\n"
                f"      disable_threading: true,\n      verify_each: {flag}\n"
                "    }\n  }\n#-}\n",
                encoding="utf-8",
            )
        except OSError as error:
            message = f"cannot write the reproducer '{self.path}': {error.strerror}"
            raise ReproducerError(message) from None

    def succeeded(self) -> None:
        """Delete the reproducer of a pass that has succeeded."""
        self.path.unlink(missing_ok=True)


def writer_for(name: str, directory: str = "") -> Writer | None:
    """A writer of a fresh file in `directory`, or in the one the environment names; None without.

    name: starts the file's name; the function's, say.
    """
    folder = directory or os.environ.get(DIRECTORY_VARIABLE, "")
    if not folder:
        return None
    stem = re.sub(r"[^\w.-]+", "_", name) or "module"
    path, n = Path(folder) / f"{stem}.mlir", 1
    while path.exists():
        path, n = Path(folder) / f"{stem}.{n}.mlir", n + 1
    return Writer(path)


_PIPELINE = re.compile(rf'\bpipeline\s*:\s*({STRING})"')
_VERIFY_EACH = re.compile(r"\bverify_each\s*:\s*(true|false)")


def read(text: str) -> Reproducer:
    """The reproducer in a module's text.

    Raises:
        ReproducerError: the text contains none.
    """
    start = text.rfind("mlir_reproducer")
    pipeline = _PIPELINE.search(text, start) if start >= 0 else None
    if pipeline is None:
        raise ReproducerError("the input holds no reproducer: no 'mlir_reproducer' with a pipeline")
    verify_each = _VERIFY_EACH.search(text, start)
    return Reproducer(
        _unquoted(pipeline.group(1)[1:]), verify_each is None or verify_each.group(1) == "true"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', "\\22").replace("\n", "\\0A") + '"'


def _unquoted(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code, 16)) if len(code) == 2 else {"n": "\n", "t": "\t"}.get(code, code)

    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", one, text)

"""What a pass is: a name, a function over one `func.func`, and its options as a dataclass.

A pass lives in a file of its own in this folder, with a docstring that shows IR before and after,
and exports `PASS`. `compiler/passmanager.py` finds it there; nothing else needs to be touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gflow.dialects.mlir import func


@dataclass(frozen=True)
class NoOptions:
    """Options of a pass that has none."""


class PassError(RuntimeError):
    """A pass cannot do its work on this IR; the message says why, and is shown as a diagnostic."""


@dataclass(frozen=True)
class Pass:
    """One pass.

    name: as the textual pipeline spells it, `gflow-fuse`.
    run: rewrites one function in place; gets the function and an instance of `options`.
    options: a frozen dataclass whose fields (with defaults, snake_case) are the pipeline's options
        (`gflow-fuse{max-ops=64}` sets `max_ops`); fields are int, float, bool, str or tuples of them.
    doc: the module's docstring.
    """

    name: str
    run: Callable[[func.FuncOp, Any], None]
    options: type = NoOptions
    doc: str = ""

"""The definition of a pass: a name, a function over one `func.func`, and its options as a dataclass.

A pass is one file in a folder of `compiler/passes/`, with a docstring that shows IR before and after, and exports
`PASS`. `compiler/driver/pass_manager.py` finds it by its file name; no registration is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from gflow.dialects.mlir import func
from gflow.dialects.records import record

from ..ir.errors import PassError
from ..memory.analyses import run_forgetting
from ..targets import Target, parse_target


@record
class NoOptions:
    """The options of a pass without options."""


def target_of(name: str) -> Target | None:
    """The target that an option names; None for an empty name.

    Raises:
        PassError: the target is unknown.
    """
    try:
        return parse_target(name) if name else None
    except ValueError as error:
        raise PassError(str(error)) from None


class Kept(Enum):
    """What a pass left unchanged, as its `rewrite` returns it; None stands for nothing."""

    #: ops, their order, operands, types, and the attributes that say how values lie; others may have been written
    BODY = "body"


@record
class Pass:
    """One pass.

    name: as the textual pipeline spells it, `gflow-fuse`.
    rewrite: rewrites one function in place; gets the function and an instance of `options`. What it says that it kept
        (`Kept`) lets analyses of the function (`compiler/memory/analyses.py`) serve the next pass, too. Who runs a pass
        calls `run` instead.
    options: a frozen dataclass whose fields (with defaults, snake_case) are the pipeline's options
        (`gflow-fuse{max-ops=64}` sets `max_ops`); fields are int, float, bool, str or tuples of
        them. The metadata "doc" of a field is its line in the help and docs.
    doc: the module's docstring.
    """

    name: str
    rewrite: Callable[[func.FuncOp, Any], Kept | None]
    options: type = NoOptions
    doc: str = ""

    def run(self, function: func.FuncOp, options: Any) -> Kept | None:
        """Rewrite the function in place and drop invalid analyses. Returns what the pass kept.

        Raises:
            PassError: the pass fails; the message says why.
        """
        return run_forgetting(lambda: self.rewrite(function, options))

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return self.doc.strip().split("\n\n")[0].replace("\n", " ").rstrip(".")

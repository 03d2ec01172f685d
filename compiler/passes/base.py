"""What a pass is: a name, a function over one `func.func`, and its options as a dataclass.

A pass lives in a file of its own in this folder, with a docstring that shows IR before and after,
and exports `PASS`. `compiler/driver/pass_manager.py` finds it there; nothing else needs to be touched.
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
    """Options of a pass that has none."""


def target_of(name: str) -> Target | None:
    """The target that an option names; None where it names none.

    Raises:
        PassError: it is unknown.
    """
    try:
        return parse_target(name) if name else None
    except ValueError as error:
        raise PassError(str(error)) from None


class Kept(Enum):
    """What a pass has left as it was, as it says by the result of its `run`; nothing, where that is None."""

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
        """Rewrite the function in place, and forget the analyses that hold no longer; what the pass kept.

        Raises:
            PassError: the pass says why it cannot.
        """
        return run_forgetting(lambda: self.rewrite(function, options))

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return self.doc.strip().split("\n\n")[0].replace("\n", " ").rstrip(".")

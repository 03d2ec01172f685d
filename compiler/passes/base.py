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


def gpu_of(name: str, why: str) -> Target:
    """The GPU that an option names. why: what the pass does on GPUs, for messages.

    Raises:
        PassError: the target is unknown, or no GPU.
    """
    target = target_of(name)
    if target is None or not target.gpu:
        raise PassError(f"{why} on GPUs: name one as target, such as cuda:90")
    return target


class Kept(Enum):
    """What a pass preserved, as its `rewrite` returns it; None: nothing."""

    #: ops, their order, operands, types, and the attributes of layouts; other attributes may have been written
    BODY = "body"


@record
class Pass:
    """A pass.

    Attributes:
        name: its name in textual pipelines, such as `gflow-fuse`.
        rewrite: rewrites one function in place. It takes the function and an instance of `options`, and returns what it
            preserved (`Kept`), so that cached analyses (`compiler/memory/analyses.py`) stay valid for the next pass. To
            run a pass, call `run` instead.
        options: a frozen dataclass whose fields (with defaults, snake_case) are the pipeline's options
            (`gflow-fuse{max-ops=64}` sets `max_ops`). Fields are int, float, bool, str or tuples of them. The metadata
            "doc" of a field is its line in the help and docs.
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

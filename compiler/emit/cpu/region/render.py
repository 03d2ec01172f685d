"""A kernel description as an MLIR function in the dialects `scf`, `arith`, `vector` and `llvm`.

There are four loop structures, by the dimension that vectors run along:

    scalar      no dimensions, no loops
    pointwise   no reductions: outer dimensions (shared by threads) · vectors
    row         a reduced dimension: outer dimensions (threads) · for each level of reductions a pass over the row · a
                last pass that stores
    column      a kept dimension: outer dimensions and tiles of vectors (threads) · the same passes

The end of a vector loop is one masked vector.
"""

from __future__ import annotations

from gflow.compiler.kernel.description import Kernel

from ..language.parameters import Plan
from ..language.writer import Writer
from .column import write_column
from .pointwise import write_pointwise, write_scalar
from .row import write_row

_MODES = {
    "scalar": write_scalar,
    "pointwise": write_pointwise,
    "row": write_row,
    "column": write_column,
}


def render(k: Kernel, p: Plan, name: str) -> tuple[str, set[str]]:
    """The kernel as MLIR text of a function `name`, and the external functions that it calls."""
    w = Writer(k, p)
    _MODES[p.mode](w)
    text = f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{w.text()}\n    llvm.return\n  }}"
    return text, w.externals

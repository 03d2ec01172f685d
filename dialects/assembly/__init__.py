"""The assembly of the dialect that people read, and its way back.

MLIR's bindings have no custom printers for dialects that are defined in Python, so MLIR itself prints and parses the
generic form only: that form stays the one for exchange. The functions here rewrite text, line for line, so that line
numbers of diagnostics are those of the text that was given:

    generic   %2 = "gflow.matmul"(%0, %1) : (tensor<5x3xf32>, tensor<3x4xf32>) -> tensor<5x4xf32>
    assembly  %2 = gflow.matmul %0, %1 : (5x3xf32, 3x4xf32) -> 5x4xf32

A line that is not of the dialect (or is, in a way that no pass writes) stays generic: both forms may be mixed.

scan      brackets, strings and lists in MLIR text
types     tensor types and lists of them, long and short; the runs of equal types of a `mixed` op
entries   attributes of an op, long and short
printer   generic text → assembly
parser    assembly → generic text

The grammar stands in docs/assembly.md.
"""

from __future__ import annotations

from .parser import AssemblyError, is_assembly, to_generic
from .printer import op_to_assembly, to_assembly

__all__ = ["AssemblyError", "is_assembly", "op_to_assembly", "to_assembly", "to_generic"]

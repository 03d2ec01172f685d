"""Check the memory plan: no two live values overlap, and all lie where they must.

A plan with a mistake:

    func.func @f(%a: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {gflow.arena_size = 64 : i64} {
      %0 = "gflow.matmul"(%a, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %1 = "gflow.matmul"(%0, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = "gflow.matmul"(%1, %a) {gflow.buffers = ["result:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %2 : tensor<4x4xf32>
    }

Error:

    …: error: result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still

Changes nothing. Reads `gflow.buffers`, `gflow.arena_size` and the order of ops, and asks of the
planner nothing but the rule of when a kernel may write over its operand. Aliased results lie in
their arguments, and nobody reads an argument's old value after its update.
"""

from __future__ import annotations

from gflow.dialects.mlir import func

from ..errors import PassError
from ..memory.check import problems
from .base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    for message, op in problems(function):
        raise PassError(message, op)


PASS = Pass("gflow-verify-memory", run, NoOptions, __doc__ or "")

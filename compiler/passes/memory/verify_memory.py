"""Verify the memory plan: no live values overlap, and every value has the place and strides that its readers expect.

A plan with an error:

    func.func @f(%a: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {gflow.arena_size = 64 : i64} {
      %0 = "gflow.matmul"(%a, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %1 = "gflow.matmul"(%0, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = "gflow.matmul"(%1, %a) {gflow.buffers = ["result:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %2 : tensor<4x4xf32>
    }

Error:

    …: error: result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still

The pass changes nothing. Its run time is linear in the number of ops. It is the last pass of every compilation, for
every pipeline. It reads `gflow.buffers`, `gflow.arena_size`, `gflow.strides` and the order of ops. It shares only one
rule with the planner: when a kernel may overwrite its operand. It checks that

- places and scratch are inside the arena and aligned, and overlap no live value;
- updates are in their arguments, with the strides of the argument (`arg:2[1, 8]`) and without elements that share
  memory; results are in the caller's buffers, row-major;
- every op supports the strides of its results and operands;
- no op reads the old value of an argument after its update, except the updating kernel itself, which reads each element
  before it writes it;
- the ops of one `gflow.launch` are adjacent, update arguments, and read nothing that another of them writes.
"""

from __future__ import annotations

from gflow.compiler.ir.errors import PassError
from gflow.compiler.memory.plan_check import problems
from gflow.dialects.mlir import func

from ..base import Kept, NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> Kept:
    """Check the function's memory plan.

    Raises:
        PassError: it is not sound; the first problem, with its op.
    """
    for message, op in problems(function):
        raise PassError(message, op)
    return Kept.BODY


PASS = Pass("gflow-verify-memory", run, NoOptions, __doc__ or "")

"""Check the memory plan: no two live values overlap, all lie where they must and as their readers expect.

A plan with a mistake:

    func.func @f(%a: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {gflow.arena_size = 64 : i64} {
      %0 = "gflow.matmul"(%a, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %1 = "gflow.matmul"(%0, %a) {gflow.buffers = ["arena:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = "gflow.matmul"(%1, %a) {gflow.buffers = ["result:0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %2 : tensor<4x4xf32>
    }

Error:

    …: error: result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still

Changes nothing, takes time in proportion to the ops, and is the last pass of every compilation, whatever
the pipeline was. It reads `gflow.buffers`, `gflow.arena_size`, `gflow.strides` and the order of ops, and asks
of the planner nothing but the rule of when a kernel may write over its operand. So it holds that

- places are inside the arena, on an alignment, and on no value that is needed still, nor is scratch;
- updates lie in their arguments, with the strides that these have (`arg:2[1, 8]`) and elements that share no
  memory; results lie in the caller's buffers, row-major;
- every op can write its results and read its operands with the strides that they have;
- nobody reads an argument's old value after its update, unless the kernel that updates it is done with it,
  position by position;
- ops of one `gflow.launch` stand together, update arguments, and read nothing that another of them writes.
"""

from __future__ import annotations

from gflow.compiler.ir.errors import PassError
from gflow.compiler.memory.plan_check import problems
from gflow.dialects.mlir import func

from ..base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Check the function's memory plan.

    Raises:
        PassError: it is not sound; the first problem, with its op.
    """
    for message, op in problems(function):
        raise PassError(message, op)


PASS = Pass("gflow-verify-memory", run, NoOptions, __doc__ or "")

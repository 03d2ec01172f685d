"""CPU kernels of fused regions: pointwise, row and column loops.

column      reductions whose vectors run along a kept dimension: batch norm statistics, gradients of biases,
            short rows
pointwise   kernels without reductions: outer dimensions, then vectors
reductions  accumulators, blocked sums, and partial results of threads
render      a kernel description as an MLIR function over `scf`, `arith`, `vector` and `llvm`
row         reductions whose vectors run along a reduced dimension: softmax, layer norm, sums of rows
"""

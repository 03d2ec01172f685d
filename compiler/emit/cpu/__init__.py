"""Code generation for CPUs: kernels as MLIR text, BLAS calls, ATen calls.

build            a planned function becomes a `Program`
checks           run-time checks (`gflow.check`), which end the run
declarations     declarations of external functions that kernels call
early            kernels that no later pass changes, whose compilation begins before them
indexing         `gflow.take` and `gflow.index_copy`: slices by index
movement         data-movement ops as strided copies
pooling          maxima over windows and their gradients, channels last
program_builder  the builder of a program: adds kernels and copies
attention/       gflow's own attention kernels: blocks of keys with a running softmax
language/        writing MLIR text: SSA names, loops, loads and stores, elementwise ops, random numbers
product/         matrix products and convolutions, with their epilogues
region/          kernels of fused regions: pointwise, row and column loops
"""

"""Code generation: a planned function becomes a `Program` of steps, with kernels as MLIR text or Triton source.

aten_ops        ops that run as ATen calls because gflow has no kernel for them
aten_pooling    pooling as ATen calls
collectives     steps of collectives, which PyTorch's process groups execute; the same for all targets
engine_regions  steps of `gflow.engine` regions: the region in the format that its engine compiles
placement       the addresses of a planned function's values, and the list of steps; the base of both code generators
steps           dispatch from ops to the functions that add their steps, shared by both code generators
cpu/            code for CPUs: kernels as MLIR text, BLAS calls
triton/         code for GPUs: Triton kernels, and their compilation to machine code
"""

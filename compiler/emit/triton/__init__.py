"""Code generation for GPUs: Triton kernels, and their compilation to machine code.

accesses         the memory that each step of a program reads and writes
build            a planned function becomes a `Program` for a GPU
library_calls    library calls that can replace launches: cuBLAS, cuDNN and others through PyTorch
program_builder  the builder of a program: adds launches of Triton kernels
race_order       what the cost model expects of each launch, for the order of races
winners          results of autotuning, written into each op's `gflow.kernel`
language/        writing Triton source: expressions, parameters, index arithmetic, device functions
ops/             kernels of other ops: attention, indexing, pooling, scans and sorts, copies, checks
product/         kernels of matrix products and convolutions: tiles, main loop, split-K, epilogue
region/          kernels of fused regions: tiling, reductions
toolchain/       compilation to machine code: worker processes, the cache, autotuning
"""

"""Code for GPUs: Triton kernels as text, and their way to machine code.

accesses         what the steps of a program for CUDA read and write, from its IR
build            a planned function to a `Program` for a CUDA device: Triton kernels, launches in order
library_calls    what a library would run in the place of launches: products, convolutions and attention through
                 PyTorch
program_builder  adding launches of Triton kernels to a program
winners          what was measured to be fastest, written into the IR: each op's `gflow.kernel` then says how it runs
language/        writing Triton's Python: expressions, parameters, index arithmetic, functions that kernels call
ops/             ops with kernels of their own in Triton: attention, indexing, pooling, scans and sorts, copies,
                 checks
product/         matrix products and convolutions in Triton: tiles, main loop, split-K, epilogue
region/          kernels of fused regions in Triton: tiling, block sizes, reductions and their splits
toolchain/       from Triton sources to machine code: worker processes, the cache of machine code, autotuning
"""

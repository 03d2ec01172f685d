"""Code for CPUs: kernels as MLIR text, matrix products by the BLAS, steps in order.

build            a planned function to a `Program`: kernels as text, steps in order
checks           checks: one load and one branch, which the runner of steps looks at after each
movement         ops that only move or make elements: copies between places
indexing         slices at indices: read, or written over what they are copied into where that is allowed
program_builder  adding steps to a program for the CPU: kernels and copies
attention/       attention on a processor, of our own: blocks of keys, one after the other, with a running softmax
language/        writing MLIR text: SSA names, loops, loads and stores, elementwise ops, random numbers
product/         contractions and convolutions for the CPU, and the epilogues that follow them
region/          kernels of fused regions for the CPU: pointwise, row and column loops
declarations     what kernels call, declared
"""

"""Writing MLIR text for CPU kernels: SSA names, loops, loads and stores, elementwise ops, random numbers.

A kernel function takes one pointer to its arguments, an array of 64-bit words.

code         the base of all kernel writers: integers, arguments, loops, threads, vectors in memory
expressions  the values of a region's expression DAG
memory       loads and stores of a region's kernel, and element types in memory
parameters   the arguments of a region's kernel, and the key of its structure
philox       Philox 4x32-10 on scalars or vectors
row_cache    values of a row that are kept in the thread's scratch between passes
scalars      elementwise ops on scalars or vectors
ssa_text     the writer of MLIR text in SSA form
template     hand-written kernels: arguments by name, vectors of float32
transpose    transposition of 16 × 16 32-bit words in registers
writer       the writer of a region's kernel: arguments, loop positions, scopes, loops
vmath/       elementwise math functions on scalars and vectors
"""

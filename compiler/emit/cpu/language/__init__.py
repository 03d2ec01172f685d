"""Writing MLIR text: SSA names, loops, loads and stores, elementwise ops, random numbers.

code         what all kernels for the CPU are written with: integers, words, loops, shares of threads, vectors
             in memory
expressions  values of the expression DAG at the writer's current position
memory       loads and stores at the writer's current position, and how element types lie in memory
parameters   which numbers a CPU kernel takes at run time, and how it walks its index space
philox       Philox 4x32-10 on scalars or vectors
row_cache    expensive values of a row, kept between the passes over it in scratch memory of the thread
scalars      one elementwise op as MLIR text, on scalars or vectors
ssa_text     a small writer of MLIR text in SSA form
template     writing a fixed kernel by hand: named words, vectors of float32
transpose    transposition of 16 × 16 words in registers
writer       the state of one kernel's text as it is written: words, loop positions, scopes, loops
vmath/       elementwise math on scalar and vector values, for the CPU code generator
"""

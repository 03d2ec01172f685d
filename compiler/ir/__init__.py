"""Queries and helpers on the IR for passes and emitters: values, views, layouts, costs, locations, errors.

attribution    the op of the planned IR that each step of a program comes from
collectives    the order of collectives in a function: tokens, numbers, and the result that keeps the last one
cost           the cost of an op: bytes moved, floating-point operations, and the time of a device
diagnostics    diagnostics as plain data: collected from an MLIR context, printed as `mlir-opt` prints them
dynamic_sizes  programs with dynamic sizes: which numbers depend on the size, and how
errors         errors of compilation
failing        which steps can fail at run time
frozen         frozen arguments, and values that depend only on them
fused          kernels as `gflow.fused` ops: the contraction inside, and other results
locations      source locations of ops: phase and module of the author's program, file and line
modules        modules and the functions in them
ssa            a function body as plain Python lists, for passes that look at all of it
tables         figures and tables as text for people
unit_reshape   reshapes that only add or remove dimensions of size 1
views          which values are views, and their layouts: base value, offset and strides, in elements
"""

"""What passes and emitters know of the IR: values, views, layouts, places, costs, locations, errors.

attribution    which op of the planned IR a step of the program comes from
collectives    the order of collectives in a function: tokens, numbers, and the result that keeps the last one
contractions   contractions inside fused ops: a `gflow.fused` of kind "contraction" has one, its root
cost           what an op costs: bytes moved, floating-point operations, and the time a device needs for them
diagnostics    diagnostics as plain data: collected from an MLIR context, printed as `mlir-opt` prints them
dynamic_sizes  programs whose sizes vary from call to call: which numbers depend on the size, and how
errors         errors of compilation
failing        which steps can fail when they run, for reasons that compilation does not see
frozen         frozen arguments, and what depends on them alone
locations      where ops come from: phase and module of the author's program, file and line
modules        modules and the functions in them
ssa            a function body as plain Python lists, for passes that look at all of it
tables         figures and tables as text for people
unit_reshape   reshapes that only add or remove dimensions of size 1
views          which values are views in memory, and how they lie: base value, offset and strides, in elements
"""

"""Analyses for the memory passes: liveness, in-place updates, layouts, and the memory plan.

analyses    a cache of analyses between passes
in_place    when a kernel may write a result over one of its operands
layouts     which strides ops support for operands and results
liveness    the buffers of a function and their live ranges
places      places in the IR (`gflow.buffers`): `arena:64`, `result:0`, `arg:2`, `arg:2[1, 8]`
plan_check  verification of a function's memory plan, from its IR alone
planned     a memory plan as plain data: steps, and the values in the arena with their live ranges
results     which op writes a result of the function
spans       the bytes of values, and memory dependences between ops
"""

"""State on which a program depends besides its arguments' elements: the Python state that `build()` reads.

arguments  attributes of tensors among the arguments, and properties of these that code has read
build      the guard of a program, from the reads of a graph's functions (`tracing/reads`)
frames     which functions ran while a graph was traced
"""

"""What a program depends on besides its arguments' elements: the Python state that `build()` reads.

arguments  attributes that were put at a tensor among the arguments, and what code asked of one
build      what these functions read (`tracing/reads`) from the objects of a graph, as the guard of its program
frames     which functions ran while a graph was traced
"""

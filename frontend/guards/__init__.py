"""What a program depends on besides its arguments: the Python state that `build()` reads.

`frames` keeps which functions ran while a graph was traced; `build` has what these read (`tracing/reads`) from the
objects of a graph made into the guard of its program.
"""

"""What a program depends on besides its arguments: the Python state that `build()` reads.

`frames` keeps which functions ran while a graph was traced, `names` what their code reads, `reads` finds the
objects that they can read it from, `state` holds that all of it is as it was. `changes` tells what `build()`
itself has changed.
"""

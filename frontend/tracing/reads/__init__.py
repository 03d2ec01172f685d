"""The Python state that code reads, and whether it is still the same.

`names` finds what the code of functions names, `settings` what objects of libraries hold, `reads` the objects
that code can read it from; `state` compares all of it at each call, and `changes` tells what `build()` has changed.
`steps` is that of optimizers' steps.
"""

"""The Python state that code reads, and whether it is still the same.

`names` finds what the code of functions names, `settings` what objects of libraries hold, `reads` the objects
that code can read it from; `state` compares all of it at each call, and `changes` tells what `build()` has changed.
`steps` is that of optimizers' steps.

    changes   what `build()` changes in Python objects
    names     the names that a function's code reads
    reads     the Python state that functions can read: attributes, globals, closures, items of containers
    settings  values that code gets from a call rather than from an object: settings of PyTorch, context variables,
              the memory of arrays
    state     the Python state that a program was compiled for, and whether it is still so
    steps     what an optimizer's step reads besides the optimizer: globals, variables of closures, attributes of
              classes
"""

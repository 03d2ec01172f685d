"""The Python state that code reads, and checks that it is unchanged.

`names` finds the names in the code of functions, `settings` values inside of libraries' objects, and `reads` the
objects from which the code can read them. `state` compares all of it at each call, and `changes` reports what
`build()` has changed. `steps` does this for optimizers' steps.

    changes   changes of Python objects by `build()`
    names     the names that a function's code reads
    reads     the Python state that functions can read: attributes, globals, closures, items of containers
    settings  values that code gets from a call rather than from an object: settings of PyTorch, context variables,
              the memory of arrays
    state     the Python state for which a program was compiled, and whether it is unchanged
    steps     what an optimizer's step reads outside of the optimizer: globals, closure variables, class
              attributes
"""

"""The Python state that code reads, and checks that it is unchanged.

`names` finds the names in the code of functions, `settings` values inside of libraries' objects, and `reads` walks over
the objects from which the code can read them. `state` compares all of it at each call, and `changes` reports what
`build()` has changed. `steps` does this for optimizers' steps.

    changes       changes of Python objects by `build()`
    names         the names that a function's code reads
    of_classes    reads of attributes of objects, and of their classes
    of_functions  reads of functions and Python modules: closure variables, globals, imports
    of_modules    reads of tensors and PyTorch modules: attributes, hooks, slots, methods
    of_objects    reads of containers, arrays and other objects
    reach         what a walk has found so far
    reads         the walk over the Python state that functions can read
    settings      values that code gets from a call rather than from an object: settings of PyTorch, context
                  variables, the memory of arrays
    state         the Python state for which a program was compiled, and whether it is unchanged
    steps         what an optimizer's step reads outside of the optimizer: globals, closure variables, class
                  attributes
"""

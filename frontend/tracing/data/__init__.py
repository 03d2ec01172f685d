"""A trace as plain data: ops, values, numbers, places, sizes.

bound_call      one call of a graph, with its arguments bound to the parameters of `build()`
branches        truths of values that Python has asked for, for which a program is made
containers      what containers hold, whatever classes derived from them say
global_tensors  global tensors: values that are sharded over a mesh, PyTorch's `DTensor`
guards          conditions on numbers under which a trace is valid
known           what a trace has read of values of integers and masks from outside
places          where an optimizer keeps the Python values that a traced step reads
pytrees         nested arguments and results: PyTorch's pytrees, dataclasses, and objects as results
sizes           dynamic dimensions in a trace
tail            ops on tensors whose shape depends on values, which run after the program
trace           the trace: `build()`, its backward and the optimizers' updates as one list of ATen ops
unchanged       detects changes of Python objects by version numbers of CPython
updates         checks which updates in place a program can make
values          the parts of a trace: tensor values, ops with their locations, inputs and outputs
"""

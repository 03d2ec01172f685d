"""A trace as plain data: ops, values, numbers, places, sizes.

bound_call  one call of a graph, its arguments bound to the parameters of `build()`
global_tensors  global tensors: values of which each rank of a mesh holds a part, PyTorch's `DTensor`
guards      conditions on numbers: a trace holds only while they do
places      where in an optimizer Python keeps what a traced step reads: its dicts, and the values in them
pytrees     nested arguments and results: what PyTorch's pytrees know, dataclasses, and objects as results
sizes       sizes that vary from call to call, in a trace
trace       the trace: `build()`, its backward and the optimizers' updates as one list of ATen ops
unchanged   whether Python objects are as they were, told by numbers that CPython changes with them
updates     which updates in place a program can make
values      what a trace is made of: tensor values, ops with their locations, inputs and outputs
"""

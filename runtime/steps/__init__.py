"""Steps that the host runs.

aten_step  running an ATen overload on tensors that live in the arena, in arguments and in results
host_step  the base of steps that the host runs: ATen calls, collectives
watched    detects changes of tensors: addresses, version counters, a few elements
words      integers at known addresses, all read by one call of NumPy
"""

"""Steps that the host runs.

aten_step  running an ATen overload on tensors that live in the arena, in arguments and in results
host_step  what steps that the host runs have in common: calls of PyTorch, collectives
watched    whether tensors are as they were: places, version counters, a few elements
"""

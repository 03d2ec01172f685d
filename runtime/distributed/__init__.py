"""Collectives as steps of a program, over the process groups of `torch.distributed`.

agreement  ranks compare their collectives before the first run of a program
exchange   reductions and large all-gathers of Gloo groups, by point-to-point messages
groups     process groups for the axes of a program's mesh
pieces     sharded tensors: a rank keeps its shard of a tensor that Python code sees whole
release    tensors that a thread of a process group still references
shared_work  one rank compiles, the others receive the result
steps      running a collective, its wait, and the copy of a rank's piece
"""

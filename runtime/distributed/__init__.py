"""Collectives as steps of a program, over the process groups of `torch.distributed`.

agreement  ranks compare what they are about to do, before the first run of a program
exchange   sums and large gathers of Gloo's groups, by messages between two ranks
groups     process groups for the axes of a program's mesh
pieces     tensors in pieces: a rank keeps its piece of one that Python code sees whole
release    tensors that a thread of a process group has not let go of yet
shared_work  one rank compiles, the others take what it has made
steps      running a collective, its wait, and the copy of a rank's piece
"""

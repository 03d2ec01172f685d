"""Recomputation: values of marked modules, and values that a memory budget leaves no room for.

boundaries     starts of the search that recompute everything between boundaries of blocks
checkpoint     recompute the values of marked module calls in the backward
choose         the greedy search for values to recompute under a limit of live bytes, at the least cost
fuse_again     fuse recomputed kernels with their readers, where that takes less time or memory
improve        a local search from the greedy search's results, for a memory budget
problem        the data of the search: producers, users, sizes, and the cost of recomputing a value
rematerialize  recompute values where they are needed, until memory fits a budget
replay         the recomputations and live bytes that follow from a choice of values
rewrite        writes the recomputations into the IR
statistics     kernels that store their small statistics, from which large results are recomputed
scopes         the marks of modules and phases on ops, which `gflow-checkpoint` reads
"""

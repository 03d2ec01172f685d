"""SPMD partitioning: a program over global values becomes the program of each rank.

choices      the ways in which an op can be sharded along one mesh axis
local_ops    ops whose local version isn't just the same op on smaller tensors
moves        resharding ops: collectives, and slices of replicated values
partition    SPMD partitioning (`gflow-partition`)
parts        checks programs that work on local shards (PyTorch's `use_local_output`)
propagate    propagation of shardings to all values (`gflow-propagate-shardings`)
resharding   the cost of resharding a value on one mesh axis, in bytes
search       the search for the shardings of all values on one mesh axis
"""

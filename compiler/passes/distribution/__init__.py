"""SPMD partitioning: from a program of whole values, some of which lie in parts on the ranks, to that of each rank.

choices      the ways in which ranks along one mesh axis can share an op
local_ops    what a rank runs for its part of an op, where that is more than the op on smaller tensors
moves        ops that place a value otherwise: collectives, or what a rank takes of what it has
partition    SPMD partitioning: from a program of whole values to the program of each rank
parts        programs that work on each rank's part by themselves: where that is the same
propagate    from the shardings of arguments and results to those of all values
resharding   what it costs, in bytes on the wire, to place a value otherwise on one mesh axis
search       the placements of all values on one mesh axis
"""

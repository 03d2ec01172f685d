"""Many ranks: which collectives a program makes, and when.

bucket_collectives     make few large collectives of many small ones, so that each message is worth its latency
choices                the ways in which ranks along one mesh axis can share an op
decompose_all_reduce   make a reduce_scatter and an all_gather of the all_reduce of a gradient
local_ops              what a rank runs for its part of an op, where that is more than the op on smaller tensors
moves                  ops that place a value otherwise: collectives, or what a rank takes of what it has
normalize_collectives  bring collectives into the one form that runs: along the first dimension, in one order
overlap_collectives    let ranks compute while collectives move data
parts                  programs that work on each rank's part by themselves: where that is the same
partition              SPMD partitioning: from a program of whole values to the program of each rank
pieces                 computing with a rank's piece of values that all ranks would have whole
propagate              from the shardings of arguments and results to those of all values
resharding             what it costs, in bytes on the wire, to place a value otherwise on one mesh axis
search                 the placements of all values on one mesh axis
split_collectives      take each collective apart into its start and its wait
streams                an order of ops for two streams: a device computes, and links move data meanwhile
zero_1                 ZeRO 1: each rank updates its piece of every parameter, and has optimizer state for it alone
zero_2                 ZeRO 2: gradients are divided as soon as they are complete, so that no rank keeps a whole one
zero_3                 ZeRO 3: each rank has its piece of every parameter; the whole is there while it is used
"""

"""ZeRO: optimizer state, gradients and parameters are sharded over the ranks (Rajbhandari et al., 2020).

decompose_all_reduce  replace the all_reduce of a gradient by a reduce_scatter and an all_gather
pieces                computing on a rank's flat shard of values
zero_1                stage 1: each rank updates its shard of every parameter, and has optimizer state only for it
zero_2                stage 2: gradients are reduce-scattered as soon as they are complete
zero_3                stage 3: each rank has its shard of every parameter, and gathers a whole one while it is used
"""

"""ZeRO: ranks share the optimizer's state, the gradients and the parameters instead of each having them all.

decompose_all_reduce  make a reduce_scatter and an all_gather of the all_reduce of a gradient
pieces                computing with a rank's piece of values that all ranks would have whole
zero_1                ZeRO 1: each rank updates its piece of every parameter, and has optimizer state for it alone
zero_2                ZeRO 2: gradients are divided as soon as they are complete, so that no rank keeps a whole one
zero_3                ZeRO 3: each rank has its piece of every parameter; the whole is there while it is used
"""

"""Choices for fused regions on GPUs: how programs share the index space, and in which blocks.

block_sizes       block sizes and warps of generated kernels, by a model of the device
launches          the launches of a fused region: one, or a few where programs share a reduction
merged            pointwise kernels that share a launch: which may, how many, in which block
pipelining        how many tiles of a loop are on their way at once
split_reductions  long reductions shared by programs: partial results in scratch, and a second launch that combines
                  them
tiling            how the programs of a kernel share its index space
"""

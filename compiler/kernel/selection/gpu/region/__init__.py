"""Kernel selection for fused regions on GPUs: tiling of the index space, block sizes, split reductions.

block_sizes       block sizes and warps, by a model of the device
launches          the launches of a region: one, or several where programs share a reduction
merged            horizontal fusion: pointwise kernels that share a launch
pipelining        the pipeline stages of a kernel's loop
split_reductions  long reductions that several programs share: partial results in scratch, and a second launch
tiling            how programs divide the index space
"""

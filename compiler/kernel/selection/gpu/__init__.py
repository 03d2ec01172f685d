"""Kernel selection for GPUs.

attention     configurations of attention kernels: block sizes, warps and stages, limited by the device's memories
calls         ATen calls that have a Triton kernel: scans up to 8192 elements a row, sorts and top-k up to 1024
              elements of types of 32 bits or fewer
chooser       the choice for each op
other_blocks  configurations of ops that are neither fused nor contractions: the model's choice, then alternatives
              for autotuning
other_ops     the choices for ops that are neither fused nor contractions
product/      contractions as matrix products: tiles, split-K, copies of operands, epilogues
region/       fused regions: tiling of the index space, block sizes, split reductions
"""

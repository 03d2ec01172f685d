"""Choices for GPUs.

attention     ways to run attention's kernels: blocks of positions, warps and stages, pruned by what a device has
calls         calls of PyTorch that have a kernel: scans up to 8192 elements a row, sorts and top-k up to 1024 of types
              of 32 bits or fewer
chooser       the choice for each op on a GPU, by a table
other_blocks  blocks and warps of the kernels of ops that are neither fused nor contractions: the model's choice, then
              others that autotuning tries
other_ops     the choices for ops that are neither fused nor contractions
product/      contractions: which product an op is, on which tiles, and what follows on them
region/       fused regions: how programs share the index space, and in which blocks
"""

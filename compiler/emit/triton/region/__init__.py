"""Triton kernels of fused regions.

fused              the launches of a region: one, or several where programs share a reduction
horizontal_fusion  pointwise kernels that share a launch
reductions         the passes of a kernel with reductions
render             the complete kernel: grid, passes and parameters
row_runs           kernels over rows that also sum columns: each program stores the sums of its run of rows
writer             the writer of a region's kernel: scopes, positions, loads and stores
"""

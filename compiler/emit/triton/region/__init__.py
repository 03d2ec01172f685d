"""Kernels of fused regions in Triton: tiling, block sizes, reductions and their splits.

fused              kernels of fused regions: one launch, or a few where programs share a reduction
horizontal_fusion  pointwise kernels that stand next to each other and don't meet in memory become one launch
reductions         the passes of a kernel that reduces
render             the whole of a region's kernel: its grid, its passes and its parameters
row_runs           kernels over rows that also sum columns: each program takes a run of rows, and leaves the
                   sums of its run
writer             a fused region as the text of a Triton kernel
"""

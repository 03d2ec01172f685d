"""Kernels of fused regions in Triton: tiling, block sizes, reductions and their splits."""

"""Kernels of fused regions for the CPU: pointwise, row and column loops."""

"""Ops with kernels of their own in Triton: attention, indexing, pooling, scans and sorts, copies, checks."""

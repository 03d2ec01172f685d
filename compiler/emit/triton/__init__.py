"""Code for CUDA devices: Triton kernels as text."""

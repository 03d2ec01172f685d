"""Writing Triton's Python: expressions, parameters, index arithmetic, functions that kernels call."""

"""Numbers and sizes whose value may differ at the next call.

held_numbers      numbers beside tensors that the dtype in which a kernel computes cannot hold
numbers           traced numbers: Python numbers whose value may differ at the next call
size_env          symbolic sizes while tracing: PyTorch's own, with one symbol and no guards
size_expressions  formulas of sizes as polynomials in one size, and the part of its range where they are
size_functions    expressions of a size as Python functions
"""

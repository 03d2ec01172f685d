"""Numbers and sizes whose value may differ at the next call.

argument_numbers  numbers of a call that ops take: as inputs where a kernel takes a number, else what they are in this
                  trace
exact_numbers     where ops of int64 and float64 give what Python's arithmetic does, for numbers of a call
held_numbers      numbers beside tensors that the dtype in which a kernel computes cannot hold
number_nodes      the nodes behind traced numbers, which PyTorch asks for what it needs of a symbolic one
numbers           traced numbers: Python numbers whose value may differ at the next call
size_env          symbolic sizes while tracing: PyTorch's own, with one symbol or two, and no guards
size_expressions  formulas of sizes as polynomials in one size, and the part of its range where they are
size_functions    expressions of a size as Python functions
"""

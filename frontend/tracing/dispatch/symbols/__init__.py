"""Numbers and sizes whose value may differ at the next call.

argument_numbers  numbers of a call as arguments of ops: inputs if a kernel supports it, otherwise constants of this
                  trace
exact_numbers     when ops of int64 and float64 give the results of Python's arithmetic, for numbers of a call
held_numbers      numbers that the dtype in which a kernel computes cannot represent
number_nodes      the nodes behind traced numbers, with PyTorch's interface of symbolic numbers
numbers           traced numbers: Python numbers whose value may differ at the next call
real_types        `type()` of values that represent others while a graph is traced
size_env          symbolic sizes while tracing: PyTorch's own, with one symbol or two, and no guards
size_expressions  formulas of sizes as polynomials in one size, and the part of its range where they are polynomials
size_protocol     what the code of the author or of a layer sees of a dynamic size: an integer
size_functions    expressions of a size as Python functions
unknown_sizes     sizes that depend on values: PyTorch's unbacked symbols
"""

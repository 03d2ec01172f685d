"""Writing Triton's Python: expressions, parameters, index arithmetic, functions that kernels call.

dag               the expression DAG of a kernel as lines of Triton, for regions and for what follows a
                  contraction alike
device_functions  functions that generated kernels call, as text
expressions       one elementwise op as an expression of Triton's Python
grid              how many programs a launch has: expressions of a kernel over its numbers
index_arithmetic  how flat positions become addresses: lines of Triton that take a number apart into coordinates
one_of_many       one kernel that runs one of several launches in each of its programs: what it is passed, and how it
                  chooses
parameters        a kernel's parameters and what one launch passes for them, collected while its text is written
precision         which values of a kernel need no more digits than a half has
signature         the text of a kernel that follows from its parameters: what Triton may assume of numbers, and
                  names
"""

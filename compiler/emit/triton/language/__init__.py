"""Writing Triton source: expressions, parameters, index arithmetic, device functions.

dag               the expression DAG of a kernel as lines of Triton, for regions and epilogues
device_functions  device functions that generated kernels call
expressions       elementwise ops as expressions
grid              the grid of a launch, evaluated from expressions over its arguments
index_arithmetic  conversion of flat positions to coordinates and offsets
one_of_many       kernels that combine several launches: their parameters, and the choice by program id
parameters        the parameters of a kernel and the arguments of a launch, collected while the source is written
precision         which values need only the precision of a half-precision result
signature         kernel signatures: names, and specialization for multiples of 16
"""

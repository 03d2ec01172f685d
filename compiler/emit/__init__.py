"""From a planned function to a `Program`: steps in order, and kernels as text in a language for each kind of target.

aten_ops      ops that run through PyTorch, because they have no kernel here (yet)
aten_pooling  pooling through PyTorch: on the CPU its kernels walk either layout
collectives   steps of collectives, the same for all targets: PyTorch's process groups do the work
engine_regions  steps of `gflow.engine` regions: the region in the form that its engine compiles
placement     where a planned function's values live, and the steps that a program gets: what every code
              generator starts from
steps         from the ops of a planned function to steps, by a table: what code generators do alike
cpu/          code for CPUs: kernels as MLIR text, matrix products by the BLAS, steps in order
triton/       code for GPUs: Triton kernels as text, and their way to machine code
"""

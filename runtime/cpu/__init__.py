"""Programs for the CPU: kernels by LLVM's JIT, and the table of steps that runs them.

device   the CPU as a device: arguments are used where they lie, and a step has run when its call returns
jit      kernels from MLIR text to machine code, by upstream passes and LLVM's JIT
machine  which instructions machine code may use: what this processor has, or what `GFLOW_CPU_ISA` limits it
         to
objects  loads object files that LLVM has made: relocatable ELF for x86-64, straight into memory
table    the native steps of a program: a table of kernels and their words, run by generated code
"""

"""Programs for the CPU: kernels from LLVM's JIT, and the table of steps that runs them.

device   the CPU as a device: arguments are used in place, and steps are synchronous
jit      machine code of kernels: compiled by LLVM in threads, or from the disk cache
llvm     kernels from MLIR text to an engine of LLVM, by upstream passes
machine  the instruction sets of machine code: those of this processor, or those that `GFLOW_CPU_ISA` allows
objects  loads object files of LLVM (relocatable ELF for x86-64) into memory
table    the native steps of a program: a table of kernels and their arguments, run by generated code
"""

"""From Triton sources to machine code: worker processes, the cache of machine code, autotuning.

autotune       choosing how to run each launch by measuring: its kernel's configs, and a library's call
compile        Triton kernels to machine code for a device: in parallel, and kept on disk
device_code    the machine code of a program's launches, and which of its configs a kernel runs with where
               nothing is measured
machine_code   what a compiled kernel's assembly says: what it takes, registers, spills, matrix instructions
process_pool   processes that compile Triton kernels side by side, started once and used again
source_module  Python text as a module that Triton can read back
worker         a process that compiles Triton kernels: `python -m gflow.compiler.emit.triton.toolchain.worker`
"""

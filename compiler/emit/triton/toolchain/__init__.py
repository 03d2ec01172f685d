"""Compilation of Triton kernels to machine code: worker processes, the cache, autotuning.

autotune       autotuning: timed comparisons of a launch's configurations and of library calls
compile        compilation of kernels in parallel, with a cache on disk
device_code    the machine code of a program's launches; another configuration where the first one spills
machine_code   the resources of compiled kernels, from their assembly: parameters, registers, spills
process_pool   a pool of processes that compile kernels
source_module  Python text as a module that Triton can read back
worker         a process that compiles Triton kernels: `python -m gflow.compiler.emit.triton.toolchain.worker`
"""

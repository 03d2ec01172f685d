"""Kernel selection: the kind of kernel of each op, tiles, split-K, copies of operands, scratch.

The functions are pure: a choice depends only on the op, its operands' layouts and the target.

    choice  the kernel chosen for an op, and its form in the IR (`gflow.kernel`)
    select  the choice for each op of a function
    cpu/    choices for CPUs
    gpu/    choices for GPUs
"""

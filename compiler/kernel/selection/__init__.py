"""Which kernels ops run as: kinds, tiles, split-K, copies of operands, scratch. Pure functions of ops and a target.

- `choice.py`: what is chosen for an op, and how it stands in the IR (`gflow.kernel`)
- `select.py`: the choice for each op of a function
- `gpu/`, `cpu/`: the choices of a kind of target

    choice  what is chosen for an op, and how it stands in the IR
    select  the choice for each op of a function
    cpu/    choices for a processor
    gpu/    choices for GPUs
"""

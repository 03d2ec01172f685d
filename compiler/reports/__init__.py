"""What the compiler says about a program: costs, launches, drawings.

costs     what a program costs, before and after the passes: kernels, bytes moved, operations, time on a device
launches  what the launches of a program for CUDA move and compute, from its IR: `gflow-opt --emit=launches`
ptx_waits  whether a kernel's PTX waits for its asynchronous copies before it reads what they bring
timeline  the step of a program on many ranks, simulated: `gflow-opt --emit=timeline`
sass/     machine code of NVIDIA's GPUs: its loops, and how long a model says that they take
visual/   drawings of programs: pages and pictures that are one file and need no network
"""

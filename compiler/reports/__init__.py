"""Reports about programs: costs, launches, simulated steps, machine code, drawings.

costs      the cost of a program before and after the passes: kernels, bytes moved, operations, time on a device
launches   bytes and operations of each launch of a CUDA program, from its IR: `gflow-opt --emit=launches`
ptx_waits  checks that a kernel's PTX waits for its asynchronous copies before it reads the copied data
timeline   a simulated step of a program on many ranks: `gflow-opt --emit=timeline`
sass/      machine code of NVIDIA GPUs: its loops, and a model of their time
visual/    drawings of programs: pages and pictures of one file each, which need no network
"""

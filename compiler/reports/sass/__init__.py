"""Machine code of NVIDIA's GPUs, read without running it: instructions, loops, and how long a loop takes.

instructions  a disassembled kernel's instructions, with what the assembler told the scheduler; loops
kernel        a compiled kernel on a device: blocks of a multiprocessor, waves, its loops' times
loop_time     cycles of an iteration: what each pipe needs, and a run of the blocks of a multiprocessor
work          what an instruction takes of which pipe
"""

"""Static analysis of NVIDIA machine code (SASS): instructions, loops, and a model of a loop's time.

instructions  instructions of a disassembled kernel with their scheduling control fields; loops
kernel        a compiled kernel on a device: resident blocks, waves, times of its loops
loop_time     cycles of a loop iteration: the demand on each pipe, and a simulation of the resident blocks
work          the pipe and the cycles of each instruction
"""

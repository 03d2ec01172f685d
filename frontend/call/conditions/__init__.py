"""What must hold before a plan may run again: each condition is checked at each call.

layout_guard  tensors still have the shapes, strides, dtypes, devices and signs that a program was compiled for
memory_check  no input lies in the memory of what the program updates
python_state  what a plan depends on in the Python of its optimizers
"""

"""Conditions under which a plan may run again, checked at each call.

known_values  values of arguments and buffers are those for which a program was compiled
layout_guard  tensors still have the shapes, strides, dtypes, devices and signs for which a program was compiled
memory_check  no input shares memory with a tensor that the program updates
python_state  Python values of optimizers on which a plan depends
"""

"""Convolutions of channels-last float32 data on CPUs.

convolution  the steps of a convolution: im2col and matrix products, or a depthwise kernel
depthwise    the kernels of depthwise convolutions
kernels      the table of convolution kernels: text and arguments by name
patches      the kernels of im2col and of its transpose
"""

"""Convolutions for the CPU, of channels-last float32 data.

convolution  convolutions as steps: patches and GEMM, or a depthwise kernel
depthwise    depthwise convolutions: one output channel for each input channel
kernels      the kernels of convolutions, by name: text, and the words that each takes
patches      the windows of a convolution as rows of a matrix
"""

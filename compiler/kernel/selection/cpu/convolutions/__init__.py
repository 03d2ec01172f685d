"""Kernel selection of convolutions on CPUs.

direct     those that read windows in place, and their gradients
patches    channels-last float32 convolutions: im2col and matrix products, or depthwise
winograd   3×3 convolutions and their gradients by Winograd's algorithm
"""

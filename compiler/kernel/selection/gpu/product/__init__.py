"""Kernel selection for contractions on GPUs.

contraction  the contraction of an op, alone or in a fused op, and the choice for it as a tiled product
convolution  convolutions and their gradients as matrix products: problem sizes, layouts, choices
epilogue     the epilogue of a contraction: its registers and the length of its code
matmul       matrix products with any strides and any number of batch dimensions
operands     the operands of a product as matrices; padded copies that make vectorized loads possible
shared       matrix products that share a launch: conditions, predicted time, choice
tiles        tile selection: candidates, their resources on a device, predicted time
"""

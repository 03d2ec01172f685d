"""Choices for contractions on GPUs: which product an op is, on which tiles, and what follows on them.

contraction  the contraction of an op, alone or in a fused op, and the choice for it as a product on tiles
convolution  convolutions and their gradients as products: sizes, where the tensors lie, and the choice for each
epilogue     what follows a contraction on the tile of its result: what it costs in registers and text
matmul       products of matrices: any strides, any number of batch dimensions
operands     operands of a product as matrices, and which of them are copied so that whole vectors of them can be
             loaded
shared       products that share a launch: which may, how long they take together, and the choice for them
tiles        which tiles a contraction is computed in: candidates, what they need of a device, how long they take
"""

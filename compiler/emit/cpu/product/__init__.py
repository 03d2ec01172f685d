"""Contractions and convolutions for the CPU, and the epilogues that follow them.

blocked       products of matrices of our own: panels, register tiles, and the loops over blocks around them
conv_kernels  the kernels of convolutions, by name: text, and the words that each takes
conv_patches  patches of channels-last f32 data: the windows of a convolution as rows of a matrix
convolution   convolutions as steps: patches and GEMM, or a depthwise kernel
depthwise     depthwise convolutions of channels-last f32 data, one output channel for each input channel
dots          products of few rows whose operands are both contiguous along K: nothing is packed
epilogue      what follows a contraction in one fused op, run piece by piece on the rows it has just made
finish        what follows a product, on a tile that has just been summed: it is read from the stack, not from memory
function      functions that a kernel of products calls: their arguments are values, not words
gemm          matrix products by the BLAS that PyTorch carries, called from generated code
halves        contractions in halves by way of float32: the operands are widened into scratch, the product is
              made there, and rounded once into its place
matmul        matrix products as steps: our own, BLAS calls, or calls into PyTorch for element types without one
own           products of our own as steps: the words of `blocked`, and the functions that these name
panels        packing: parts of a matrix in the order in which a register tile reads them
race          the ways to make a product of float32, as programs of one step each that can be timed
tile          the register tile: some rows and columns of a product, summed in registers over a block of K
"""

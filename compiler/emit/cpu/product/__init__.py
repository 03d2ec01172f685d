"""Contractions and convolutions for the CPU, and the epilogues that follow them.

conv_kernels  the kernels of convolutions, by name: text, and the words that each takes
conv_patches  patches of channels-last f32 data: the windows of a convolution as rows of a matrix
convolution   convolutions as steps: patches and GEMM, or a depthwise kernel
depthwise     depthwise convolutions of channels-last f32 data, one output channel for each input channel
epilogue      what follows a contraction in one fused op, run piece by piece on the rows it has just made
gemm          matrix products by the BLAS that PyTorch carries, called from generated code
halves        contractions in halves by way of float32: the operands are widened into scratch, the product is
              made there, and rounded once into its place
matmul        matrix products as steps: BLAS calls, or calls into PyTorch for element types without one
"""

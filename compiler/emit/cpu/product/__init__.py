"""Contractions and convolutions for the CPU, and the epilogues that follow them.

blocked        products of matrices of our own: panels, register tiles, and the loops over blocks around them
dots           products of few rows whose operands are both contiguous along K: nothing is packed
epilogue       what follows a contraction in one fused op, run piece by piece on the rows it has just made
finish         what follows a product, on a tile that has just been summed: it is read from the stack, not from memory
function       functions that a kernel of products calls: their arguments are values, not words
gemm           matrix products by the BLAS that PyTorch carries, called from generated code
halves         contractions in halves by way of float32: the operands are widened into scratch, the product is
               made there, and rounded once into its place
matmul         matrix products as steps: our own, BLAS calls, or calls into PyTorch for element types without one
own            products of our own as steps: the words of `blocked`, and the functions that these name
panels         packing: parts of a matrix in the order in which a register tile reads them
quantized      products with weights in 8 or 4 bits: they become float32 in registers
race           the ways to make a product of float32, as programs of one step each that can be timed
sweep          products of one to four rows with a matrix that is read row by row, where it lies
tile           the register tile: some rows and columns of a product, summed in registers over a block of K
packed/        products and convolutions whose weight was packed beforehand
convolutions/  convolutions of channels-last float32 data
"""

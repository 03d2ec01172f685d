"""Matrix products and convolutions on CPUs, with their epilogues.

blocked        the loops over blocks of gflow's own matrix product, around packing and register tiles
dots           products of few rows whose operands are both contiguous along K, without packing
epilogue       epilogues that run on chunks of rows of a contraction's result
finish         epilogues that run on register tiles
function       functions that product kernels call; their arguments are values, not an array of words
gemm           matrix products by PyTorch's BLAS, called from generated code
halves         half-precision contractions: operands are widened to float32, the result is rounded once
matmul         the steps of a matmul: gflow's own kernel, BLAS calls, or ATen calls for other element types
own            the step of gflow's own matrix product: the arguments of `blocked`
panels         packing of A and B into panels
quantized      products with weights of 8 or 4 bits, which become float32 in registers
race           programs for a timed comparison of gflow's own product and the BLAS
sweep          products of one to four rows, which read B row by row without packing
tile           the register tile (microkernel)
bfloat16/      products of bfloat16 values by Intel AMX or AVX-512, and float32 products from them
packed/        products and convolutions that read the activation in place, and gradients of weights
winograd/      3×3 convolutions and their gradients by Winograd's algorithm
convolutions/  convolutions of channels-last float32 data
"""

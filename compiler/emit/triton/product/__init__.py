"""Matrix products and convolutions in Triton: tiles, main loop, split-K, epilogue.

conv_text       index arithmetic that convolution kernels share: positions, taps, bounds
convolution     convolutions and their gradients as implicit matrix products
depthwise       depthwise convolutions, which are memory-bound, and no matrix products
epilogue        the epilogue of a contraction, computed on a program's tile
main_loop       the common structure of contraction kernels: order of programs, loop over K, epilogue, split-K
matmul          matrix products with any strides and any number of batch dimensions
one_launch      grouped GEMM: products that share a launch as one kernel
operand_sums    the sums of an operand over K, computed in the loop over K
operand_copies  padded copies of operands, made before the product
output_tile     the elements of a contraction's result in a program's tile, and the epilogue's offsets there
split_k         further launches of contractions: sums of partial sums, K = 0, ATen calls with an epilogue
"""

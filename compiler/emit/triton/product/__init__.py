"""Matrix products and convolutions in Triton: tiles, main loop, split-K, epilogue.

conv_text       pieces of text that convolution kernels share: positions, taps, and where they meet the input
convolution     convolutions and their gradients as matrix products whose operands are found by index arithmetic
depthwise       depthwise convolutions, one output channel for each input channel: bound by memory, so no
                products of matrices
epilogue        what follows a contraction in one fused op, computed on the tile of its result that a program
                holds
main_loop       the frame of every contraction: programs in an order that the second-level cache likes, a loop
                over K (the summed dimension), what follows on the tile, and a second kernel where K is split
matmul          matrix products as kernels: any strides, any number of batch dimensions, what follows on the
                tile
one_launch      products that share a launch as one kernel
operand_copies  copies of operands that lie badly, made before the kernel that reads them
output_tile     the elements of a contraction's result that one program has, and where the kernels that follow
                find theirs
split_k         what contractions are made of beside their kernels: sums of partial sums, sums of nothing,
                PyTorch's call
"""

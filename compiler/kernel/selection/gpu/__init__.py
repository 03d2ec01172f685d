"""Choices for GPUs.

- `chooser.py`: the choice for each op, by a table
- `contraction.py`: contractions as products on tiles; `matmul.py`, `convolution.py`: which products these are;
  `operands.py`: their operands, and copies of them; `tiles.py`: tiles, and a model of the time that they take;
  `epilogue.py`: what follows on a tile
- `region.py`: the launches of a fused region; `tiling.py`: how programs share its index space; `block_sizes.py`: how
  much of it each has; `pipelining.py`: tiles on their way; `split_reductions.py`: reductions that programs share
- `attention.py`: attention; `other_ops.py`: the rest, whose blocks are in `other_blocks.py`

    attention         ways to run attention's kernels: blocks of positions, warps and stages, pruned by what a
                      device has
    block_sizes       block sizes and warps of generated kernels, by a model of the device
    calls             calls of PyTorch that have a kernel: scans up to 8192 elements a row, sorts and top-k up to
                      1024 of types of 32 bits or fewer
    chooser           the choice for each op on a GPU
    contraction       the contraction of an op, alone or in a fused op, and the choice for it as a product on tiles
    convolution       convolutions and their gradients as products: sizes, where the tensors lie, and the choice for
                      each
    epilogue          what follows a contraction on the tile of its result: what it costs in registers and text
    matmul            products of matrices: any strides, any number of batch dimensions
    merged            pointwise kernels that share a launch: which may, how many, in which block
    operands          operands of a product as matrices, and which of them are copied so that whole vectors of them
                      can be loaded
    other_blocks      blocks and warps of the kernels of ops that are neither fused nor contractions: the model's
                      choice, then others that autotuning tries
    other_ops         the choices for ops that are neither fused nor contractions, on a GPU
    pipelining        how many tiles of a loop are on their way at once
    region            the launches of a fused region: one, or a few where programs share a reduction
    split_reductions  long reductions shared by programs: partial results in scratch, and a second launch that
                      combines them
    tiles             which tiles a contraction is computed in: candidates, what they need of a device, how long
                      they take
    tiling            how the programs of a kernel share its index space
"""

"""Choices for GPUs.

- `chooser.py`: the choice for each op, by a table
- `contraction.py`: contractions as products on tiles; `matmul.py`, `convolution.py`: which products these are;
  `operands.py`: their operands, and copies of them; `tiles.py`: tiles, and a model of the time that they take;
  `epilogue.py`: what follows on a tile
- `region.py`: the launches of a fused region; `tiling.py`: how programs share its index space; `block_sizes.py`: how
  much of it each has; `split_reductions.py`: reductions that programs share
- `other_ops.py`: the rest
"""

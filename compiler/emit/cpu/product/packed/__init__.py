"""Products and convolutions whose weight was packed beforehand.

kernel  the loops around the tiles: shares, and the addresses of the rows that a share reads
steps   `packed_product` as a step
tile    the register tile: rows are read at their addresses, for each position of a kernel
"""

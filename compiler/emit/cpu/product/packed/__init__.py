"""Products and convolutions with a packed weight (`gflow-pack-weights`).

kernel  the loops over shares and tiles, and the table of the addresses of a share's rows
steps   the step of a `packed_product`
tile    the register tile, which reads rows of the activation through the table of addresses
"""

"""Products whose A is read in place, and whose B is packed in strips: beforehand (`gflow-pack-weights`), or here.

gradient       the loops of the gradient of a convolution's weight; both operands are read in place
gradient_tile  its register tile
kernel         the loops over shares and tiles
steps          the steps of a `packed_product`, and of convolutions and their gradients (`kind = "direct"`)
tile           the register tile, which reads rows of the activation through a table of addresses
weights        packing of a convolution's weight
windows        the table of the addresses of a share's rows
"""

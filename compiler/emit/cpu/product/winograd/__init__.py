"""Convolutions with a 3×3 kernel and stride 1 by Winograd's algorithm F(2×2, 3×3) (`kind = "winograd"`).

base         the place of a tile, and the search for infinities and NaN
gradient     the loops of the gradient of a weight
kernel       the loops over tiles: transform of the input, products, transform of the result
steps        the steps of a convolution and of its gradients
transforms   the transforms of weights, inputs, results and gradients
"""

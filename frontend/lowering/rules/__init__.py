"""The rules by which ATen ops are lowered, a file for each family.

choosing     clamping, choosing, tests, logic, conversions and copies, element by element
creation     tensors without operands: full, arange, linspace, eye
distribution  shardings that the program requests: `gflow.reshard`
elementwise  arithmetic, comparisons, bit operations and math functions, element by element
foreach      `_foreach_*`: the rule of the plain op, for each tensor of the lists
indexing     look-ups by index tensors, and their gradients: sums by index
randomness   random numbers: stateless Philox draws, one stream number each (docs/random.md)
reductions   sums, means, extremes, variances, norms
scatter      padding, triangles, and ops that write a slice into a tensor
shape        views, permutations, slices and their scatters, which move elements without changing them
strided      strided views: as_strided over a value's row-major elements, and sliding windows
nn/          layers: products, convolutions, norms, attention, losses
"""

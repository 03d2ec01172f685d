"""How each ATen op is lowered; a file for each family.

choosing     clamping, choosing, tests, logic, conversions and copies, element by element
creation     tensors from nothing: full, arange, linspace, eye
distribution  how ranks hold a value: `gflow.reshard`
elementwise  arithmetic, comparisons, bit operations and math functions, element by element
foreach      `_foreach_*`: the rule of the plain op, for each tensor of the lists
indexing     look-ups by index tensors, and the sums that go back
randomness   random numbers: stateless Philox draws, one stream number each (docs/random.md)
reductions   sums, means, extremes, variances, norms
scatter      padding, triangles, and the ops that write a slice back into a whole
shape        views, permutations, slices and their scatters: positions renamed, values untouched
strided      strided views: as_strided over a value's row-major elements, and sliding windows
nn/          what layers of networks are made of: products, convolutions, norms, attention, losses
"""

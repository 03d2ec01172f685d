"""How each ATen op is lowered; a file for each family.

activations    activation functions and their gradients
attention      scaled dot product attention, by whichever of PyTorch's kernels the device chose:
               `gflow.attention`
choosing       clamping, choosing, tests, logic, conversions and copies, element by element
contraction    matrix products
convolution    convolutions of any number of spatial dimensions, transposed ones, and their gradients
creation       tensors from nothing: full, arange, linspace, eye
elementwise    arithmetic, comparisons, bit operations and math functions, element by element
foreach        `_foreach_*`: the rule of the plain op, for each tensor of the lists
indexing       look-ups by index tensors, and the sums that go back
losses         loss functions and their gradients
normalization  batch, layer, group and RMS normalization, forward and backward
pooling        pooling: `gflow.max_pool`, `gflow.avg_pool` and their gradients
randomness     random numbers: stateless Philox draws, one stream number each (docs/random.md)
recurrent      cells of recurrent networks, which PyTorch has as one kernel each on a GPU
reductions     sums, means, extremes, variances, norms
scatter        padding, triangles, and the ops that write a slice back into a whole
shape          views, permutations, slices and their scatters: positions renamed, values untouched
softmax        softmax and log-softmax, forward and backward
strided        strided views: as_strided over a value's row-major elements, and sliding windows
"""

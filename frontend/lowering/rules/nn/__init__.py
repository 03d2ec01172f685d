"""How ATen ops of layers of networks are lowered.

activations    activation functions and their gradients
attention      scaled dot product attention, by whichever of PyTorch's kernels the device chose:
               `gflow.attention`
contraction    matrix products
convolution    convolutions of any number of spatial dimensions, transposed ones, and their gradients
losses         loss functions and their gradients
normalization  batch, layer, group and RMS normalization, forward and backward
pooling        pooling: `gflow.max_pool`, `gflow.avg_pool` and their gradients
recurrent      cells of recurrent networks, which PyTorch has as one kernel each on a GPU
softmax        softmax and log-softmax, forward and backward
"""

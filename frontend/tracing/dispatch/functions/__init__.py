"""The function mode above autograd while tracing, and its handlers for single functions of PyTorch.

custom_writes  custom ops that write into arguments
facts       properties of tensors from outside that Python can read, besides elements and layout: whether a tensor is
            a leaf, a view, shared between processes
gradients   `backward()` and `.grad`
in_place    which results an op may write into a tensor in place, or by `out=`
layouts     keeps the strides of traced tensors at updates in place
memory      functions that depend on a tensor's storage, or change its strides
networks    layers: batch norm, dropout, pooling, embeddings, attention, losses
out_types   functions whose kernels write only to a tensor of the result's dtype
overlaps    updates through views whose elements share memory: of expanded tensors, of overlapping windows
proxies     the traced tensors that represent real ones
recurrent   LSTMs, GRUs and plain RNNs
rewrites    the function mode
transformed  calls within transforms of `torch.func`
value_free  functions whose implementation in PyTorch reads values, although the shape of the result does not depend
            on them
values      functions that read the values of tensors
"""

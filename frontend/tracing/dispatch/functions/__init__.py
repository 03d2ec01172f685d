"""What happens above autograd while tracing: a function mode, and what it does with single functions of PyTorch.

custom_writes  custom ops that write into arguments
facts       what Python can ask of a tensor from outside besides its elements and their layout: whether it is
            a leaf, a view, shared between processes
gradients   `backward()` and `.grad`
in_place    what an elementwise op may write into a tensor in place, or by `out=`
layouts     what an update in place leaves of a traced tensor's strides: all of them
memory      functions that ask where a tensor lies in memory, or give it other strides
networks    layers: batch norm, dropout, pooling, embeddings, attention, losses
out_types   functions whose kernels write to a tensor of the result's own dtype alone
overlaps    writes to parts of views whose elements are one in memory: of an expanded tensor, of overlapping windows
proxies     the traced tensors that stand for real ones
recurrent   LSTMs, GRUs and plain RNNs
rewrites    the function mode
values      functions that look at the values of tensors
"""

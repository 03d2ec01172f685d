"""Triton kernels of other ops: attention, indexing, pooling, scans and sorts, copies, checks.

argmax             argmax and argmin
attention          the launches of attention, forward and backward (FlashAttention)
attention_text     the source of the attention kernels
checks             run-time checks (`gflow.check`), which write a report to memory of the host
indexing           take, gather, index_add, index_copy and put
library_attention  attention by the library kernels in PyTorch: FlashAttention's and cuDNN's
movement           data-movement ops as strided copies
pooling            pooling and its gradients
scan_sort          scans, sorts and top-k along short rows: ATen calls that have a Triton kernel
windows            index arithmetic of pooling windows, as text
"""

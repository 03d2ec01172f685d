"""Ops with kernels of their own in Triton: attention, indexing, pooling, scans and sorts, copies, checks.

argmax             where the largest or smallest element of a row stands: argmax and argmin
attention          attention, forward and backward, as flash-style kernels
attention_text     the source of attention's kernels: flash style, no matrix of scores in memory, no atomics
checks             checks: a launch of one program, which writes to memory of the host only if the flag is set
indexing           look-ups by index, and sums that go back
library_attention  attention, forward and backward, by the kernels that PyTorch has of others: FlashAttention
                   and cuDNN's
movement           ops that only move or make elements: copies between places
pooling            pooling: each program computes a tile of the result
scan_sort          scans, sorts and top-k along short rows: calls of PyTorch that have a kernel here
windows            windows of pooling, as text: which elements a window holds, and which windows hold an element
"""

"""Which ops share a kernel: the passes that decide it, and their parts.

dataflow         what fusion knows of each op and value of a function, without deciding anything
emit             from groups to `gflow.fused` ops, in an order that respects every dependency
epilogue         joining a pointwise kernel to the contraction whose result it reads: bias, activation, residual
                 add
fuse             group elementwise ops and reductions into kernels
groups           groups: sets of ops that become kernels, and which ops may share one
grow             growing groups op by op, then joining groups that read the same data
hoist            pointwise kernels that read arguments alone run first, next to each other, so that they can
                 share launches
merge_updates    runs the updates of all parameters in few kernels, after the last gradient is known
softmax_forms    how values over a matrix of scores depend on the scores
split_softmax    softmax over long rows of a product without passes over whole rows
parts            the first part of a kernel that reduces: up to a value that is stored, and that the rest goes
                 through
recompute        repeating a value's expression in the groups that read it, where that saves memory traffic
"""

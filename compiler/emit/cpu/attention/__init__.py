"""gflow's own attention kernels for CPUs: blocks of keys with a running softmax (FlashAttention).

Tensors are float32, or bfloat16 values that AVX-512 multiplies in pairs.

kernel      the base of the kernels: arguments, tasks, tiles, rows of scores
few         scores of few rows, whose keys are not packed
pairs       bfloat16 rows in pairs, for sums over rows
forward     the result and the log-sum-exp of each row
backward    the gradients with respect to q, k and v
race        programs for a timed comparison of gflow's own kernel and PyTorch's
steps       the steps of `gflow.attention` and `gflow.attention_grad`
"""

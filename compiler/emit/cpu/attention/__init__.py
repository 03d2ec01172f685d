"""gflow's own float32 attention kernels for CPUs: blocks of keys with a running softmax (FlashAttention).

kernel      the base of the kernels: arguments, tasks, tiles, rows of scores
few         scores of few rows, whose keys are not packed
forward     the result and the log-sum-exp of each row
backward    the gradients with respect to q, k and v
race        programs for a timed comparison of gflow's own kernel and PyTorch's
steps       the steps of `gflow.attention` and `gflow.attention_grad`
"""

"""Attention on a processor, of our own: blocks of keys, one after the other, with a running softmax.

kernel      what kernels of attention are written with: words, tasks, tiles, and rows of scores
few         scores of few rows, whose keys are not packed
forward     the result and the logarithms of sums
backward    the gradients by q, k and v
race        the ways to make an attention of float32, as programs of one step each that can be timed
steps       the steps of `gflow.attention` and `gflow.attention_grad`
"""

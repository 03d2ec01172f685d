"""Attention that a program writes out: what it looks like, and the pass that makes one op of it.

description          one attention that a program writes out, as value numbers
values               numbers, layouts and equal values, seen through ops that only change a form
match                written-out attention in a function body
gradients            its backward, as autograd makes it
mask_operands        the mask of an attention as `gflow.attention` has it: causal, or an operand
empty_rows           rows of an attention that see no key, as eager has them: NaN, or equal weights
masks                what a mask says, where constants and positions alone decide it
recognize_attention  one `gflow.attention` for softmax(scale · q kᵀ + mask) v, and one op for its gradients
"""

"""Attention that a program writes out: what it looks like, and the pass that makes one op of it.

masks                what a mask says, where constants and positions alone decide it
match                written-out attention and its gradients in a function body
recognize_attention  one `gflow.attention` for softmax(scale · q kᵀ + mask) v, and one op for its gradients
"""

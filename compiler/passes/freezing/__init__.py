"""Passes for inference with frozen parameters.

freeze            move ops that depend only on frozen arguments into a prologue, which runs once
pack_weights      pack frozen weights in the order in which kernels read them
quantize_weights  quantize frozen weights of matrix products to 8 or 4 bits
"""

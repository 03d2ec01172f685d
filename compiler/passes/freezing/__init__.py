"""Passes for inference with frozen parameters.

freeze            split a function into what follows from frozen arguments alone, run once, and what runs at each call
pack_weights      pack frozen weights in the order in which kernels read them
quantize_weights  give frozen weights of matrix products 8 or 4 bits
"""

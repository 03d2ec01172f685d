"""Kernel selection for CPUs.

attention    attention: gflow's own kernel or PyTorch's, and the blocking
batches      batched matrix products: which batches one loop of BLAS calls covers
blocking     the cost model of matrix products: blocking, and gflow's own kernel or the BLAS
chooser      the kernel of each op, and its scratch
contraction  a contraction, and the epilogue that follows it
convolutions/  windows in place, patches, Winograd's algorithm
halves       contractions in half precision
loops        loop nests of regions: loop order, vectorized dimension, parallel dimension, cached row values
other_ops    ops that are neither fused nor contractions: copies, slices by index, quantized products
products     contractions in float32: gflow's own kernels, the BLAS or PyTorch
row_values   which values of a row are kept in scratch between passes over it
rows         contractions in chunks of rows, each followed by its epilogue
sharing      which steps run on all threads: those that take longer than starting the threads
strips       products with a packed weight: register tile, and the share of a thread
"""

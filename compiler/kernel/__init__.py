"""Kernels as data, independent of the target language: index space, loads, expression DAG, reductions, stores.

attention          the blocking of gflow's own CPU attention kernels: register tiles, blocks of keys, rows of a task
attention_contest  the key of a timed comparison of two attention kernels on a CPU
blocks       the blocking of gflow's own CPU matrix products: register tiles, cache blocks, shares of threads
canonical    a canonical order of a kernel's stores, so that equal kernels share their code
constants    which constants are literals in the source of a GPU kernel, and which are kernel arguments
contest      the key of a timed comparison of two matrix-product kernels: sizes and contiguous dimensions
convolution  the geometry of a convolution and of its gradients
description  the description of a kernel: index space, loads, expression DAG, reductions, stores
dimensions   merging of dimensions of an index space
movement     data-movement ops (pad, concatenate, reverse, iota) as strided copies and as kernels
registers    the element types of values in registers of a GPU
sizes        integer arithmetic on sizes
tiles        the epilogue of a matrix product as a kernel over the rows and columns of the product
selection/   kernel selection: kinds, tiles, split-K, copies of operands, scratch
"""

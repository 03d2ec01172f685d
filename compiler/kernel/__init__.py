"""Kernels as data, before any language: index space, loads, expression DAG, reductions, stores.

attention          how attention of our own is cut on a processor: register tiles, blocks of keys, and the rows that a
                   thread takes
attention_contest  what two ways to make an attention are compared by
blocks       how a product of matrices of our own is cut on a processor: tiles in registers, blocks in caches, shares of
             threads
canonical    one order for the stores of a kernel, so that kernels that do the same share their code
constants    which constants stand in the text of a GPU's kernel, and which a launch passes
contest      what two ways to make a product are compared by: its sizes, and how its operands lie
convolution  the geometry of a convolution and of its gradients
description  what a kernel does, as data: index space, loads, an expression DAG, reductions, stores
dimensions   dimensions of an index space that are walked as one
movement     ops that only move or make elements, as copies between places, and as kernels
registers    what values are in registers: halves are float32 there
sizes        arithmetic on sizes that choices and code share
tiles        what follows a product, tile by tile: its kernel over the rows and columns of the product
selection/   which kernels ops run as: kinds, tiles, split-K, copies of operands, scratch
"""
